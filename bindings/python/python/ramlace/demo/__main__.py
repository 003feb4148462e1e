"""``python -m ramlace.demo``."""

import sys

from ramlace.demo.main import main

# Worker processes import this module too, under another name.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

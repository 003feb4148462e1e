"""Write a file into the pool and read it back.

.venv/bin/python examples/hello.py
"""

import ramlace

with ramlace.connect() as pool:
    with pool.open("/hello", "w+b") as file:
        file.write(b"hello from a pool of memory")
        file.seek(0)
        print(file.read().decode())
    pool.remove("/hello")

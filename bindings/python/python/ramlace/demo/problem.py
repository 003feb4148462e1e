"""What the demo says when it cannot go on."""


class DemoError(Exception):
    """The demo ends with this sentence and exit code 1; the sentence names the next step."""

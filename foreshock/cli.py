"""The ``foreshock`` command."""


def main() -> None:
    """Run the command line."""

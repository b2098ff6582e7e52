"""``python -m foreshock`` is the command ``foreshock``."""

from foreshock.start import main

if __name__ == "__main__":
    main()

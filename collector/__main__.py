"""``python -m collector`` is ``foreshock collect`` by another name."""

import sys

from foreshock.start import main

if __name__ == "__main__":
    sys.argv[1:1] = ["collect"]
    main()

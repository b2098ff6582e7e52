"""``python -m api`` is ``foreshock serve`` by another name."""

import sys

from foreshock.start import main

if __name__ == "__main__":
    sys.argv[1:1] = ["serve"]
    main()

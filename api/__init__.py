"""Alerts to people and tools: store, REST, event stream, webhooks.

This package must not know statistics: it shows and delivers what the detector said.
"""

import logging

# Its plug-ins announce themselves one by one at import, and every look at the schema.
logging.getLogger("alembic").setLevel(logging.WARNING)

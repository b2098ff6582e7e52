"""Tells people: signed requests, retries, an outbox that survives crashes.

``signing``, ``retry`` and ``messages`` compute; ``outbox`` stores; ``sender`` is the only file
that opens connections to receivers. A new kind of receiver is one file with an
:class:`~api.notify.base.Adapter`.
"""

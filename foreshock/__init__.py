"""The front door: the ``foreshock`` command, settings, and the all-in-one composition.

Only this package wires services to a transport, and only it reads the environment.
"""

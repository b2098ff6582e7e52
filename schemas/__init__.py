"""The contract between the processes: what travels, under which name, in which unit.

Admission rule: a thing belongs here if changing it alone would break a running peer. This
package imports nothing of ours.
"""

"""Write the JSON Schemas: ``python -m schemas`` regenerates ``schemas/*.schema.json``."""

from schemas.jsonschema import write_all

if __name__ == "__main__":
    write_all()

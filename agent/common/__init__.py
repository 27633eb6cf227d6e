"""What every other folder builds on: errors, canonical JSON, bounded JSON Schema checks, artifacts, suggestions.

Code here knows no plan, no execution and no tool. Code that only one other folder uses belongs in that folder.
"""

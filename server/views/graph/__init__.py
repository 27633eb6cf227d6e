"""A plan as a graph: what to draw, where it goes, and the forms in which people see it.

`plan_graph` says what there is and writes it as text, and `svg` draws it. All of it is a pure function of a plan and
its states. Nothing here reads a store or knows a page.
"""

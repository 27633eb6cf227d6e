"""The page docs/saved-plans.md: one saved plan over real servers, from everywhere, with what was printed.

`stage` makes the folder of notes and planwarden's home, `transcript` keeps what commands and screens print, `legs` and
`in_host` are what a person does, one after the other, and `page` puts it together.
"""

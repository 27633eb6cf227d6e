"""Characters that nobody sees, as a table: what text from outside must not hide behind.

Unicode says which code points are drawn as nothing where a font does not know them (Default_Ignorable_Code_Point,
https://www.unicode.org/reports/tr44/), assigned or not. One of them, U+FE0F, is in common use: it shows the character
before it as a picture. It passes after a character that has one, and nowhere else.
"""

import re

_DEFAULT_IGNORABLE = (
    "ad 34f 61c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0 fff0-fff8 "
    "1bca0-1bca3 1d173-1d17a e0000-e0fff"
)
"""Ranges of code points in hexadecimal."""
_DRAWN_AS_NOTHING = "2800"
"""BRAILLE PATTERN BLANK, which Unicode calls a symbol."""
_PICTURES = (
    "a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 25aa-25ab 25b6 25c0 "
    "25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626 262a 262e-262f 2638-263a 2640 2642 "
    "2648-2653 265f-2660 2663 2665-2666 2668 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab "
    "26b0-26b1 26bd-26be 26c4-26c5 26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 "
    "2708-270d 270f 2712 2714 2716 271d 2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 2763-2764 2795-2797 "
    "27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297 3299 1f004 1f0cf 1f170-1f171 1f17e-1f17f "
    "1f18e 1f191-1f19a 1f1e6-1f1ff 1f201-1f202 1f21a 1f22f 1f232-1f23a 1f250-1f251 1f300-1f321 1f324-1f393 "
    "1f396-1f397 1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd 1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 "
    "1f573-1f57a 1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3 "
    "1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d7 1f6dc-1f6e5 1f6e9 "
    "1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945 1f947-1f9ff 1fa70-1fa7c 1fa80-1fa89 "
    "1fa8f-1fac6 1face-1fadc 1fadf-1fae9 1faf0-1faf8"
)
"""Characters with the property Emoji, without digits, which are seen no other way with U+FE0F unless a keycap follows.
"""
PICTURE, KEYCAP = "\ufe0f", "\u20e3"


def _compile(ranges: str) -> re.Pattern[str]:
    ends = (part.partition("-") for part in ranges.split())
    return re.compile("[" + "".join(f"{chr(int(low, 16))}-{chr(int(high or low, 16))}" for low, _, high in ends) + "]")


_INVISIBLE = _compile(f"{_DEFAULT_IGNORABLE} {_DRAWN_AS_NOTHING}")
_PICTURED = _compile(_PICTURES)


def is_invisible(character: str, before: str) -> bool:
    """Return whether nobody sees the character; `before` is the one before it, or empty.

    A digit before U+FE0F is meant as part of a keycap: the caller has seen that U+20E3 follows.
    """
    if character == PICTURE and before:
        return not (_PICTURED.fullmatch(before) or before in "#*0123456789")
    return _INVISIBLE.fullmatch(character) is not None

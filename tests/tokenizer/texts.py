"""Texts for fuzzing: mixtures of what is likely to break a byte-level BPE, from a seed."""

import random
import string

PARTS = [
    *"abcdefgstmdlrvezZQ019 .,'\"-_=/#\n\t\r  ",
    *("'s", "'t", "'ll", "'ve", "'re", "'m", "'d", "'S", "’s", "don't", "the", " the", " world", "    ", "\r\n"),
    *("\u00a0", "\u3000", "\u2028", "\u1680", "\u0085", "\x1c", "\x1f", "\x00", "\u200b", "\ufeff", "\u180e"),
    *(
        "é",
        "ñ",
        "ß",
        "Ж",
        "日",
        "本",
        "語",
        "한",
        "ก",
        "अ",
        "ा",
        "ع",
        "א",
        "٣",
        "²",
        "½",
        "Ⅷ",
        "𝟗",
        "𐍈",
        "😀",
        "👩\u200d👧",
    ),
    *("\ua7ce", "\U000323b0", "€", "\ufffd", "e\u0301", "\U0010ffff", "\u0378", "<|endoftext|>"),
]


def random_texts(seed: int, number: int) -> list[str]:
    """Texts of up to about 60 parts, some of one kind, some of random code points."""
    source = random.Random(seed)
    texts = []
    for _ in range(number):
        kind, length = source.randrange(6), source.randrange(1, 30)
        if kind == 0:
            text = "".join(source.choices(PARTS, k=length))
        elif kind == 1:
            few = source.sample(PARTS, 4)
            text = "".join(source.choices(few, k=2 * length))
        elif kind == 2:
            text = "".join(chr(_scalar(source)) for _ in range(length))
        elif kind == 3:
            text = " ".join("".join(source.choices(string.ascii_letters, k=source.randrange(1, 12))) for _ in range(8))
        elif kind == 4:
            text = source.choice(PARTS) * length + source.choice(PARTS)
        else:
            text = "".join(source.choices(string.printable, k=2 * length))
        texts.append(text)
    return texts


def _scalar(source: random.Random) -> int:
    while True:
        point = source.randrange(source.choice([0x80, 0x800, 0x10000, 0x110000]))
        if not 0xD800 <= point <= 0xDFFF:
            return point

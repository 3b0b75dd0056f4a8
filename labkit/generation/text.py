"""Ids -> text as it can be shown: whole characters only, and never the beginning of a stop string.

In: one id at a time. Out: the text that is now certain.
"""

from collections.abc import Sequence

from labkit.tokenizer import Tokenizer


class TextFeed:
    """The text of a growing row.

    >>> feed = TextFeed(Tokenizer.gpt2(), stop=["world"])
    >>> [feed.add(token) for token in Tokenizer.gpt2().encode("Hello, wor")], feed.close()
    (['Hello', ',', ' '], 'wor')

    A character whose bytes are spread over tokens comes with its last byte. What might be the beginning of a stop
    string waits until it is known not to be one; ``found`` is the stop string that ended the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = ()) -> None:
        self._decoder = tokenizer.incremental_decoder()
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def add(self, token: int, *, may_stop: bool = True) -> str:
        """Take one id; the text that is certain now. ``may_stop`` False: a stop string complete by now ends nothing."""
        self._held += self._decoder.feed(token)
        if not self._stop:
            return self._release(len(self._held))
        places = [(place, text) for text in self._stop if (place := self._held.find(text)) >= 0]
        if places and may_stop:
            place, self.found = min(places)
            certain = self._release(place)
            self._held = ""
            return certain
        if places:
            return self._release(max(place + len(text) for place, text in places))
        return self._release(len(self._held) - max(_overlap(self._held, text) for text in self._stop))

    def close(self) -> str:
        """The text is over: what was held back, with U+FFFD for a character that never became whole."""
        if self.found is not None:
            return ""
        self._held += self._decoder.close()
        return self._release(len(self._held))

    def _release(self, count: int) -> str:
        certain, self._held = self._held[:count], self._held[count:]
        return certain


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` might be the beginning of ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)

"""A judged candidate -> findings that lie in what is said of it, or in how it was recorded, told as such.

An engine may be right and its trace not: weights or arithmetic of another dtype than declared, positions that were not
stated, a buffer recorded twice or never, axes in another order. Each such *reading* is tried on the stages that differ
by themselves. It is taken where it brings some of them within rounding and no other stage out of it.
"""

from labkit.verification.readings.again import read_again as read_again
from labkit.verification.readings.reading import OF_A_TRACE as OF_A_TRACE
from labkit.verification.readings.reading import OF_AN_ENGINE as OF_AN_ENGINE
from labkit.verification.readings.reading import READINGS as READINGS
from labkit.verification.readings.reading import Stated as Stated

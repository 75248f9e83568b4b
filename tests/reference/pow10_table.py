#!/usr/bin/env python3
"""Prints the table of powers of ten in server/json/float_text.c.

Entry e, for e = -31 ... 45, is the smallest 64-bit integer g with its top bit set such that
g * 2^r >= 10^e for the r that makes it fit: what Schubfach for float32 needs (Giulietti, "The
Schubfach way to render doubles", 2020).
"""

MIN_EXPONENT, MAX_EXPONENT = -31, 45


def power(e):
    """10^e scaled to 64 bits, rounded up."""
    num, den = (10**e, 1) if e >= 0 else (1, 10**-e)
    shift = 64 - (num.bit_length() - den.bit_length())
    while True:
        n, d = (num << shift, den) if shift >= 0 else (num, den << -shift)
        g = -(-n // d)
        if g < 1 << 64:
            assert g >= 1 << 63
            return g
        shift -= 1


def main():
    values = [f"0x{power(e):016x}" for e in range(MIN_EXPONENT, MAX_EXPONENT + 1)]
    for i in range(0, len(values), 4):
        print("    " + ", ".join(values[i : i + 4]) + ",")


if __name__ == "__main__":
    main()

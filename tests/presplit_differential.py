#!/usr/bin/env python3
"""Every hand-written pre-splitter against its regular expressions, run by the `regex` package, on random Unicode strings.

usage: presplit_differential.py [--n 20000] [--seed 1] [--only NAME] [--write DIR]
--write stores a sample of strings with their words, as `regex` cuts them, for tests/unit/model_presplit.c.
Code points: those assigned in the Unicode version of utf8proc whose general category and White_Space the regex package agrees on.
Needs: python3 with `regex`, cc, libutf8proc-dev.
"""
import argparse, os, random, subprocess, sys, tempfile
import regex

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONTRACT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
X = r"[^\r\n\p{L}\p{N}]?"
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-"
    r"\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    r"\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    r"\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    r"\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    r"\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    r"\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    r"\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    r"\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+")
CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
EXPRESSIONS = {                                       # name in tests/data/presplit: expressions in sequence
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "llama-bpe": [CONTRACT + "|" + X + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + LINES],
    "qwen2": [CONTRACT + "|" + X + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + LINES],
    "qwen35": [CONTRACT + "|" + X + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + LINES],
    "smollm": [r"\p{N}", GPT2],
    "tekken": [X + UP + "*" + LOW + "+|" + X + UP + "+" + LOW + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + LINES],
    "gpt-4o": [X + UP + "*" + LOW + "+" + CONTRACT + "?|" + X + UP + "+" + LOW + "*" + CONTRACT +
               r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + LINES],
    "deepseek-llm": [r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CJK, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*""" + LINES],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
}
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()   # utf8proc's numbers


def build(folder):
    exe = os.path.join(folder, "presplit_words")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", "-I" + ROOT + "/include", "-I" + ROOT + "/lib",
                    ROOT + "/tests/presplit_words.c", ROOT + "/lib/model/presplit.c", ROOT + "/lib/base/text.c", "-lutf8proc", "-o", exe], check=True)
    return exe


def code_points(exe):
    """Assigned code points on whose class both agree, by category."""
    rows = [tuple(map(int, line.split())) for line in subprocess.run([exe, "categories"], check=True, capture_output=True, text=True).stdout.splitlines()]
    assigned = [cp for cp, (cat, _) in enumerate(rows) if CATEGORIES[cat] not in ("Cn", "Cs")]
    text = "".join(map(chr, assigned))
    theirs = {}
    for i, cat in enumerate(CATEGORIES):
        for ch in regex.findall(r"\p{%s}" % cat, text):
            theirs[ord(ch)] = i
    white = set(map(ord, regex.findall(r"\s", text)))
    good = [cp for cp in assigned if theirs.get(cp) == rows[cp][0] and (cp in white) == bool(rows[cp][1])]
    differ = sorted(set(assigned) - set(good))
    print(f"{len(assigned)} code points assigned, {len(differ)} left out because regex {regex.__version__} classes them otherwise:",
          " ".join("%04X" % cp for cp in differ[:20]))
    by_cat = {}
    for cp in good:
        by_cat.setdefault(CATEGORIES[rows[cp][0]], []).append(cp)
    return good, by_cat


def words(expressions, text):
    pieces = [text]
    for e in expressions:
        out = []
        for p in pieces:
            at = 0
            for m in e.finditer(p):
                if m.end() == m.start():
                    continue
                if m.start() > at:
                    out.append(p[at:m.start()])
                out.append(m.group())
                at = m.end()
            if at < len(p):
                out.append(p[at:])
        pieces = out
    ends, at = [], 0
    for p in pieces:
        at += len(p)
        ends.append(at)
    return ends


def random_text(rng, good, by_cat, longest):
    """Classes that the expressions tell apart are common, and runs of one class too."""
    white = [9, 10, 11, 12, 13, 32, 0x85, 0xa0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000]
    some = [
        lambda: 32, lambda: 32, lambda: rng.choice((10, 13)), lambda: rng.choice(white), lambda: ord("'"),
        lambda: ord(rng.choice("sStTmMdDrReEvVlL\u017f")), lambda: ord(rng.choice("abzABZ")), lambda: ord(rng.choice("0123456789")),
        lambda: ord(rng.choice("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~")), lambda: ord("/"), lambda: rng.choice(by_cat["Mn"]), lambda: rng.choice(by_cat["Mc"]),
        lambda: rng.randrange(0x4e00, 0x9fa6), lambda: rng.randrange(0x3041, 0x3097), lambda: rng.randrange(0xac00, 0xd7a4),
        lambda: rng.choice((0x9fa5, 0x9fa6, 0x3002, 0x3003, 0x2018, 0x201f, 0x2020, 0xff5e, 0xff0f, 0xff10, 0x800, 0x7fa)),
        lambda: rng.choice(by_cat["Lu"]), lambda: rng.choice(by_cat["Ll"]), lambda: rng.choice(by_cat["Lt"]), lambda: rng.choice(by_cat["Lm"]),
        lambda: rng.choice(by_cat["Lo"]), lambda: rng.choice(by_cat["Nd"] + by_cat["Nl"] + by_cat["No"]), lambda: rng.choice(by_cat["Cc"] + by_cat["Cf"]),
        lambda: rng.choice(by_cat[rng.choice(sorted(by_cat))]), lambda: rng.choice(good),
        lambda: rng.choice((0xb2, 0xbd, 0x2160, 0x660, 0x1d7ce)), lambda: rng.choice((0x301, 0x20dd, 0x93e, 0x200d, 0x200b, 0x1f469, 0xfe0f)),
    ]
    allowed, out = random_text.allowed, []
    while len(out) < longest:
        make = rng.choice(some)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4, 7))):
            cp = make()
            if cp in allowed:
                out.append(cp)
        if rng.random() < 0.1:
            break
    return out[:longest]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=20000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--only")
    ap.add_argument("--write")
    ap.add_argument("--stored", type=int, default=220)
    a = ap.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        exe = build(folder)
        good, by_cat = code_points(exe)
        random_text.allowed = set(good)
        for name, patterns in EXPRESSIONS.items():
            if a.only and name != a.only:
                continue
            expressions = [regex.compile(p) for p in patterns]
            rng = random.Random(f"{a.seed} {name}")
            texts = [random_text(rng, good, by_cat, rng.choice((3, 6, 12, 24, 60))) for _ in range(a.n)]
            if a.write:
                texts = [t for t in texts if t][:a.stored]
                with open(os.path.join(a.write, name + ".txt"), "w") as f:
                    for t in texts:
                        ends = set(words(expressions, "".join(map(chr, t))))
                        f.write("".join("%x%s" % (cp, "" if i + 1 == len(t) else "|" if i + 1 in ends else " ") for i, cp in enumerate(t)) + "\n")
                continue
            got = subprocess.run([exe, name], input="".join(" ".join("%x" % cp for cp in t) + "\n" for t in texts), check=True,
                                 capture_output=True, text=True).stdout.splitlines()
            assert len(got) == len(texts)
            bad = cuts = 0
            for t, line in zip(texts, got):
                want = words(expressions, "".join(map(chr, t)))
                cuts += len(want)
                if want != [int(x) for x in line.split()]:
                    bad += 1
                    if bad <= 3:
                        print(f"{name}: {' '.join('%04X' % cp for cp in t)}\n  want {want}\n  got  {line}")
            print(f"{name}: {len(texts)} strings, {cuts} words, {bad} different")
            failures += bad > 0 or cuts < 3 * len(texts)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

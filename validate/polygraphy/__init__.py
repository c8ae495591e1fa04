"""Polygraphy, both ways: our runners in its Comparator, its runners in our verdicts, its files in a bundle.

    runners.py    each way of running a model as a polygraphy BaseRunner, and the other way round
    write.py      the bundle's polygraphy/ folder: inputs, reference outputs, limits, scripts
    language_limits.py    what each golden case may lose as language, for write.py
    results.py    RunResults judged against a bundle's golden outputs, by our rules
    checks.py     the rules that travel with a bundle: numpy alone, run by `polygraphy run`

Only runners.py imports polygraphy, which takes a second: import it where it is used.
"""

"""Values that files do not hold, and names that readers use: what the mutators write."""

from typing import Any

IMPOSSIBLE_NUMBERS = (  # in the form that a reader expects
    *(
        "-1",
        "0",
        "-5",
        "250",
        "100.4",
        "101",
        "1.5",
        "-0.5",
        "2147483648",
        "99999999999",
        "4611686018427387904",
    ),
    *(
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1234567890123456789012345678901234567890",
    ),
)


NASTY_NUMBERS = (
    *IMPOSSIBLE_NUMBERS * 2,
    *(
        "-1",
        "0",
        "-0",
        "1e300",
        "1e400",
        "-1e400",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "2147483648",
    ),
    "-2147483649",
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *(
        "18446744073709551615",
        "18446744073709551616",
        "4611686018427387904",
        "",
        " ",
        "1e5",
        "1E-400",
        "0x10",
    ),
    *(
        "1234567890123456789012345678901234567890",
        "0." + "3" * 40,
        "1_000",
        "٣٤٥",
        "²",
        "12,5",
        "1.234,5",
        "1,234.5",
    ),
    *(
        "1.2.3",
        "--5",
        "+7",
        "5e",
        ".",
        "-",
        "250",
        "100.4",
        "-5",
        "1.5",
        "99999999999",
        "N/A",
        "[Not Supported]",
    ),
)


NASTY_WORDS = (
    *(
        "",
        "-",
        "N/A",
        "nan",
        "null",
        "None",
        "true",
        '"',
        "'",
        ",",
        ";",
        "\t",
        "\\",
        "\x00",
        "\u2028",
        "\ufeff",
        "é",
    ),
    *(
        "A" * 300,
        "ab" * 2000,
        "%s",
        "{}",
        "[",
        "]",
        "<",
        "&",
        "../../etc/passwd",
        "\x1b[31m",
        "GPU",
        "\U0001f600",
        "#",
    ),
)


NASTY_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1.5,
        -0.5,
        1e300,
        -1e300,
        2**31,
        2**53 + 1,
        2**62,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
    ),
    *(
        -(2**63) - 1,
        10**40,
        "",
        "a",
        "1",
        "-1",
        "1e5",
        "nan",
        "12,5",
        "\x00",
        "é",
        "x" * 5000,
        [],
        {},
        [1],
        {"a": 1},
    ),
    *([None], [[[]]], float("inf"), float("-inf"), float("nan"), 100.4, 2.5, -3),
)


# Expressions for UPDATE; none uses chance.
NASTY_SQL = (
    *(
        "NULL",
        "-1",
        "0",
        "1",
        "''",
        "'a'",
        "'1e5'",
        "'12'",
        "1.5",
        "1e300",
        "9e999",
        "-9e999",
        "4611686018427387904",
    ),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "2147483648",
        "18446744073709551616",
        "x'ff00fe'",
        "x'41'",
    ),
    *(
        "zeroblob(100)",
        "'é'",
        "char(0)||'a'",
        "replace(hex(zeroblob(2000)),'00','ab')",
        "-{c}",
        "{c}+1",
        "{c}*1000000",
    ),
    *(
        "{c}-4611686018427387904",
        "CAST({c} AS TEXT)",
        "CAST({c} AS BLOB)",
        "CAST({c} AS REAL)",
        "{c}/2.0",
        "rowid",
    ),
    *("10*365*86400*1000000000+{c}", "0-{c}", "255", "256", "65536"),
)


# Columns of an nsys export that a reader is likely to use.
COLUMNS = """
start end bytes deviceId streamId correlationId globalPid globalTid nameId gridX blockY
registersPerThread staticSharedMemory dynamicSharedMemory demangledName shortName
copyKind srcKind dstKind srcDeviceId memKind textId text eventType domainId timestamp
value metricId typeId metricName id name clockRate totalMemory smCount memoryBandwidth
computeMajor utcEpochNs duration startTime graphNodeId cuDevice gpuId
"""
USED = COLUMNS.split()

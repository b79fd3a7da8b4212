"""A result that is kept, of three strategies on twelve devices; the worst are dev-03, dev-07 and dev-11.

Two rounds, from 10 s to 130 s and on to 310 s; dev-03 is late in the first.
"""

from pathlib import Path

from sedge_emulate.result import read_json

PATH = Path(__file__).parents[1] / "vectors" / "result_format_1.json"
SAMPLE = read_json(PATH)

"""What a run was for; boards count evaluations, unless they are asked for others."""

from typing import Literal, get_args

Purpose = Literal["evaluation", "selection", "confirmation", "exploration"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

"""Former names of `hlorank.training.process_group`, until all modules use the new ones."""

from hlorank.training.process_group import ALONE as ALONE
from hlorank.training.process_group import ProcessGroup as Ranks
from hlorank.training.process_group import RankLostError as RankLostError
from hlorank.training.process_group import connection_lost as connection_lost
from hlorank.training.process_group import deal as deal
from hlorank.training.process_group import launched as launched
from hlorank.training.process_group import process_group as joined_ranks

__all__ = ["ALONE", "RankLostError", "Ranks", "connection_lost", "deal", "joined_ranks", "launched"]

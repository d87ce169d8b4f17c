"""Studies: the trials of searches, kept in journals or a database, and read back as records.

Everything public is named here; a module is imported when one of its names is first used. Read a study, or all that
ended::

    from tilescout.search.studies import read_study, study_store

    result = read_study(name, ".tilescout/studies")
    found = study_store("postgresql://user@host/studies").results()
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.studies.database import Database
    from tilescout.search.studies.folders import STORE, artifacts, studies
    from tilescout.search.studies.journal import Journal, JournalForm
    from tilescout.search.studies.journal_folder import JournalFolder, open_study
    from tilescout.search.studies.ledger import Ledger, distributions, seen
    from tilescout.search.studies.places import read_study, result_of, study_store
    from tilescout.search.studies.predicted import with_expected
    from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
    from tilescout.search.studies.sharing import SharingOptions, SharingTuner, SoleTuner, Tuner
    from tilescout.search.studies.study_store import StudyStore

__all__ = [
    "STORE",
    "Database",
    "Journal",
    "JournalFolder",
    "JournalForm",
    "Ledger",
    "SharingOptions",
    "SharingTuner",
    "SoleTuner",
    "StudyInfo",
    "StudyResult",
    "StudyStore",
    "TrialRecord",
    "Tuner",
    "artifacts",
    "distributions",
    "open_study",
    "read_study",
    "result_of",
    "seen",
    "studies",
    "study_store",
    "with_expected",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "STORE": "folders",
        "artifacts": "folders",
        "studies": "folders",
        "Database": "database",
        "Journal": "journal",
        "JournalForm": "journal",
        "JournalFolder": "journal_folder",
        "open_study": "journal_folder",
        "Ledger": "ledger",
        "distributions": "ledger",
        "seen": "ledger",
        "read_study": "places",
        "result_of": "places",
        "study_store": "places",
        "with_expected": "predicted",
        "StudyInfo": "records",
        "StudyResult": "records",
        "TrialRecord": "records",
        "SharingOptions": "sharing",
        "SharingTuner": "sharing",
        "SoleTuner": "sharing",
        "Tuner": "sharing",
        "StudyStore": "study_store",
    },
)

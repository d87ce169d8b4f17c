"""Campaigns: measure many configurations on many problems, on all GPUs, into a table.

What is named here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.campaigns.campaign import Campaign, CampaignOptions, Progress
    from tilescout.search.campaigns.collection import collect, journal_path
    from tilescout.search.campaigns.plan import Plan, make_plan

__all__ = ["Campaign", "CampaignOptions", "Plan", "Progress", "collect", "journal_path", "make_plan"]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Campaign": "campaign",
        "CampaignOptions": "campaign",
        "Plan": "plan",
        "Progress": "campaign",
        "collect": "collection",
        "journal_path": "collection",
        "make_plan": "plan",
    },
)

"""The day that counts as today in an imported inbox."""

from collections.abc import Mapping
from datetime import date, timedelta

_FEWEST_MAILS = 20
"""With fewer mails than this, none counts as misdated: one mail after a long break can be right."""
_LONGEST_BREAK = timedelta(days=365)


def today_of(mails_by_day: Mapping[date, int]) -> date | None:
    """Return the newest day of the mail, except for misdated mail; None without any mail.

    The newest hundredth of the mails, at least one, is set aside. Today is the newest day of all mails that is at most
    365 days after the newest day of the rest. The result is always one of the given days, and the same for the same
    mail.
    """
    mails = sum(mails_by_day.values())
    set_aside = max(1, mails // 100) if mails >= _FEWEST_MAILS else 0
    newest_first = sorted((day for day in mails_by_day if mails_by_day[day] > 0), reverse=True)
    for day in newest_first:
        set_aside -= mails_by_day[day]
        if set_aside < 0:
            return next(mail_day for mail_day in newest_first if mail_day - day <= _LONGEST_BREAK)
    return None

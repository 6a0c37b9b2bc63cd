"""Measure how many of the emails that contain a text are found in languages without spaces between words.

    python -m benchmarks.service.search_languages [SEED]

Writes invented emails in Chinese, Japanese, Korean and Thai, made of common words, into one inbox, and searches it for
parts of them of 1 to 4 characters. An email is right if its subject or body contains the characters.
"""

import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from unicodedata import normalize

from learnloop_service.environment.email_search.inbox import MAX_HITS, Email, Inbox

EMAILS = 250
"""Emails in each language."""
QUERIES = 200
"""Queries in each language."""
LENGTHS = (1, 2, 3, 4)
_START = datetime(2026, 1, 5, 9, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Language:
    """Common words, what is written after each, and how a sentence ends."""

    words: str
    links: Sequence[str]
    end: str
    space: str = ""


LANGUAGES = {
    "Chinese": Language(
        "会议 合同 签署 星期五 发票 预算 项目 经理 办公室 客户 报告 时间 地点 电话 酒店 机票 确认 取消 "
        "安排 产品 价格 付款 银行 公司 部门 培训 面试 计划 更新 系统 密码 文件 附件 邮件 回复 感谢 明天 "
        "下周 三楼",
        ("的", "和", "在", "了", "请", "与", ""),
        "。",
    ),
    "Japanese": Language(
        "会議 会議室 契約 請求書 予算 プロジェクト 担当者 来週 金曜日 三階 お客様 報告書 ホテル 出張 "
        "確認 資料 見積もり 部長 打ち合わせ スケジュール メール 返信 添付 電話 東京 大阪 研修 面接 "
        "システム パスワード 納期 製品 価格 支払い 銀行",
        ("の", "を", "に", "は", "が", "と", "で行います", "をお願いします"),
        "。",
    ),
    "Korean": Language(
        "회의 회의실 계약서 청구서 예산 프로젝트 담당자 다음주 금요일 고객 보고서 호텔 출장 확인 자료 "
        "견적 부장 일정 메일 답장 첨부 전화 서울 부산 교육 면접 시스템 비밀번호 납기 제품 가격 결제 은행 "
        "회사 부서 사무실 삼층 내일",
        ("를", "에", "은", "이", "와", "에서", "부터", "입니다"),
        ".",
        " ",
    ),
    "Thai": Language(
        "ประชุม ห้องประชุม สัญญา ใบแจ้งหนี้ งบประมาณ โครงการ ผู้จัดการ สัปดาห์หน้า วันศุกร์ ลูกค้า "
        "รายงาน โรงแรม เดินทาง ยืนยัน เอกสาร ใบเสนอราคา หัวหน้า กำหนดการ อีเมล ตอบกลับ ไฟล์แนบ โทรศัพท์ "
        "กรุงเทพ อบรม สัมภาษณ์ ระบบ รหัสผ่าน ส่งมอบ สินค้า ราคา ชำระเงิน ธนาคาร",
        ("ที่", "และ", "ของ", "ใน", "กับ", "ให้", "ได้", ""),
        " ",
    ),
}


def emails(name: str, seed: int) -> Iterator[Email]:
    """Yield the emails in a language."""
    language, rng = LANGUAGES[name], random.Random(f"{name}:{seed}")
    for number in range(EMAILS):
        sentences = [_sentence(language, rng, rng.randint(3, 8)) for _ in range(rng.randint(2, 7))]
        id = f"{name.lower()}-{number}"
        sent_at = _START + timedelta(hours=len(name) * EMAILS + number)
        subject = "".join(rng.sample(language.words.split(), 2))
        yield Email(id, f"<{id}>", "a@a.example", (), sent_at, subject, "\n".join(sentences))


def _sentence(language: Language, rng: random.Random, count: int) -> str:
    words = [rng.choice(language.words.split()) + rng.choice(language.links) for _ in range(count)]
    return language.space.join(words) + language.end


def queries(mails: Sequence[Email], seed: int) -> Iterator[str]:
    """Yield parts of the emails, the same number of each length."""
    rng = random.Random(f"queries:{seed}")
    for number in range(QUERIES):
        length = LENGTHS[number % len(LENGTHS)]
        email = rng.choice(mails)
        runs = [run for run in re.split(r"[\s.。]+", f"{email.subject}\n{email.body}") if len(run) >= length]
        run = rng.choice(runs)
        start = rng.randrange(len(run) - length + 1)
        yield run[start : start + length]


def recalls(seed: int = 0) -> dict[str, dict[int, float]]:
    """Return for each language, by the length of the query, the mean share of the right emails, or of MAX_HITS of them
    if there are more, that a search returns. Anything else that it returns is an error."""
    mails = {name: list(emails(name, seed)) for name in LANGUAGES}
    everything = [mail for of_language in mails.values() for mail in of_language]
    texts = {mail.id: normalize("NFKC", f"{mail.subject}\n{mail.body}") for mail in everything}
    shares_by_language: dict[str, dict[int, float]] = {}
    with closing(Inbox.in_memory(everything)) as inbox:
        for name, of_language in mails.items():
            shares: dict[int, list[float]] = {length: [] for length in LENGTHS}
            for query in queries(of_language, seed):
                part = normalize("NFKC", query)
                right = {id for id, text in texts.items() if part in text}
                hits = {hit.id for hit in inbox.search([query])}
                if wrong := hits - right:
                    raise AssertionError(f"{query!r} found {wrong}, which lack it")
                shares[len(query)].append(len(hits) / min(MAX_HITS, len(right)))
            shares_by_language[name] = {length: sum(values) / len(values) for length, values in shares.items()}
    return shares_by_language


def main() -> None:
    """Print the table."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    print(f"recall in the first {MAX_HITS}, {QUERIES} queries in each language, by their number of characters")
    print(f"{'':10}", *(f"{length:>6}" for length in LENGTHS), f"{'all':>6}")
    for name, shares in recalls(seed).items():
        mean = sum(shares.values()) / len(shares)
        print(f"{name:10}", *(f"{share:6.1%}" for share in (*shares.values(), mean)))


if __name__ == "__main__":
    main()

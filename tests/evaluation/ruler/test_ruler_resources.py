"""Essays and questions: their shapes, their order, and what is wrong with them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.questions import read_questions
from seqarch.evaluation.ruler.resources import Haystack, load_haystack, load_questions
from seqarch.evaluation.ruler.spec import CorpusText, FileQuestions, FileText, HubQuestions, HubText

DATA = Path(__file__).parent / "data"


def test_sentences_end_before_upper_case_letters() -> None:
    hay = Haystack(['One (is.) Two  "goes." on! Three?\nfour. 5 six. Él "end."'], "x")
    assert hay.sentences == ["One (is.)", 'Two "goes." on!', "Three? four. 5 six.", 'Él "end."']
    assert " ".join(hay.sentences) == hay.text


def test_longer_haystacks_repeat_the_text() -> None:
    """Fault 40."""
    hay = Haystack(["A b. C d e. F."], "x")
    assert hay.first_sentences(5) == ["A b.", "C d e.", "F.", "A b.", "C d e."]
    assert hay.first_sentences(2, offset=2) == ["F.", "A b."]
    assert hay.sentences_of_words(4) == ["A b.", "C d"]
    assert hay.sentences_of_words(5) == ["A b.", "C d e."]
    assert hay.sentences_of_words(13) == ["A b.", "C d e.", "F."] * 2 + ["A"]
    with pytest.raises(ResourceError, match="no text"):
        Haystack([" \n"], "x")


def test_a_folder_s_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Fault 25."""
    for name, text in (("b.txt", "Second."), ("a.txt", "First."), ("c.md", "No.")):
        (tmp_path / name).write_text(text)
    assert load_haystack(FileText(kind="file", path=str(tmp_path))).text == "First. Second."
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with pytest.raises(ResourceError, match=r"No such file|no .*txt files"):
            load_haystack(FileText(kind="file", path=str(tmp_path / name)))
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(ResourceError, match="UTF-8"):
        load_haystack(FileText(kind="file", path=str(tmp_path / "bad.txt")))


def test_essays_come_through_datasets(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["One. Two.", "Three."]}), tmp_path / "train.parquet")
    spec = HubText(kind="huggingface", path=str(tmp_path))
    assert load_haystack(spec).text == "One. Two. Three."
    with pytest.raises(ResourceError, match="no column 'body'; it has text"):
        load_haystack(spec.model_copy(update={"column": "body"}))


def test_a_missing_data_set_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ResourceError, match="kind: file"):
        load_haystack(HubText(kind="huggingface", path="nobody/never_existed_here"))


def test_essays_come_from_the_corpus(tmp_path: Path) -> None:
    """Whole documents until the budget is reached; the source says that they are no RULER essays."""
    texts = ["One. Two.", "Three.", "Four."]
    columns = {
        "doc_id": ["a", "b", "c"],
        "text": texts,
        "n_bytes": [len(text) for text in texts],
        "text_sha256": ["", "", ""],
    }
    (tmp_path / "test" / "news").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "test" / "news" / "00000.parquet")
    entry = {"files": [{"path": "test/news/00000.parquet", "rows": 3}], "bytes": 20}
    (tmp_path / "all.json").write_text(json.dumps({"domains": {"news": {"test": entry}}}))
    for n_bytes, expected in ((10, "One. Two. Three."), (1000, "One. Two. Three. Four.")):
        spec = CorpusText(kind="corpus", domains=("news",), bytes=n_bytes)
        found = load_haystack(spec, [tmp_path / "all.json"], tmp_path)
        assert (found.text, found.source) == (expected, "corpus:news:test")


def test_a_corpus_without_its_folder_is_an_error() -> None:
    with pytest.raises(ResourceError, match="--manifests"):
        load_haystack(CorpusText(kind="corpus", domains=("news",)))


def test_squad_s_file() -> None:
    found = read_questions("qa_1", DATA / "squad.json")
    assert len(found.questions) == 7  # two are impossible
    assert list(found.documents) == sorted(set(found.documents))
    first = found.questions[0]
    assert first.text == "Where does the Alder river rise?"
    assert first.answers == ("Stonefield", "near Stonefield")
    assert found.documents[first.gold[0]].startswith("The Alder river")
    assert {found.documents[i].split()[0] for i in first.more} == {"The", "No"}
    assert len(first.more) == 2


def test_hotpot_s_file() -> None:
    found = read_questions("qa_2", DATA / "hotpot.json")
    assert [question.answers for question in found.questions] == [("Portugal",), ("yes",), ("3,677 seated",)]
    assert all(len(question.gold) == 10 and question.more == () for question in found.questions)
    assert "Aveiro\nAveiro is a town on a lagoon. It lies in Portugal." in found.documents


def test_the_hub_s_rows_give_the_same_questions(tmp_path: Path) -> None:
    """Flat rows (SQuAD) and columns of titles and sentences (HotpotQA)."""
    squad = json.loads((DATA / "squad.json").read_text())
    flat = [
        {
            "title": article["title"],
            "context": paragraph["context"],
            "question": qa["question"],
            "answers": {
                "text": [a["text"] for a in qa["answers"]],
                "answer_start": [a["answer_start"] for a in qa["answers"]],
            },
        }
        for article in squad["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    hotpot = []
    for row in json.loads((DATA / "hotpot.json").read_text()):
        titles, sentences = zip(*row["context"], strict=True)
        context = {"title": titles, "sentences": sentences}
        hotpot.append({"question": row["question"], "answer": row["answer"], "context": context})
    for task, rows, file in (("qa_1", flat, "squad.json"), ("qa_2", hotpot, "hotpot.json")):
        folder = tmp_path / task
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "validation.parquet")
        found = load_questions(task, HubQuestions(kind="huggingface", path=str(folder)))
        assert found.sha256 == load_questions(task, FileQuestions(kind="file", path=str(DATA / file))).sha256


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"data": [{"paragraphs": [{}]}]}', '{"data": []}', "[1]"]
)
@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_files_of_another_shape_are_refused(tmp_path: Path, task: str, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ResourceError):
        read_questions(task, path)

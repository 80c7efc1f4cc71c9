"""Fit trivial baselines on train, and return their test scores: accuracies in percent, or perplexities."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lra.core.errors import UserError
from lra.datasets.splits import LMWindows
from lra.datasets.task import Split
from lra.datasets.tokenise import text_of

COSINE_PAIRS = 5_000  # maximum number of pairs that `Overlap` is fitted on, and that it reads at once
PICTURES = 1_000  # maximum number of pictures that are read at once
BIGRAM_WEIGHTS = np.arange(1, 20) / 20  # candidates for the weight w of `bigram`: 0.05 to 0.95


def majority(train: Split, test: Split) -> float:
    """Return the test accuracy of predicting the most frequent class of train."""
    return float(100 * np.mean(test.labels == np.bincount(train.labels).argmax()))


def nearest_centroid(train: Split, test: Split) -> float:
    """Return the test accuracy of predicting, for each picture, the class with the nearest mean training picture.

    All pictures must have the same size.
    """
    pixels = int(train.lengths(np.array([0]))[0, 0])
    classes, counts = np.unique(train.labels, return_counts=True)
    sums = np.zeros((len(classes), pixels))  # in float64, sums of whole numbers are exact
    for rows in _blocks(len(train), PICTURES):
        # [classes, rows] @ [rows, pixels]
        sums += (train.labels[rows] == classes[:, None]).astype(np.float64) @ train.pad(rows, pixels)
    means = sums / counts[:, None]
    correct = 0
    for rows in _blocks(len(test), PICTURES):
        # Squared distances to the means, without the term |x|^2, which is equal for all classes.
        distances = (means**2).sum(axis=1) - test.pad(rows, pixels) @ (2 * means.T)
        correct += int((classes[distances.argmin(axis=1)] == test.labels[rows]).sum())
    return 100 * correct / len(test)


def _blocks(n: int, size: int) -> list[np.ndarray]:
    """Return the indices 0 to n - 1, cut into consecutive arrays of at most `size` indices."""
    return [np.arange(start, min(start + size, n)) for start in range(0, n, size)]


def bag_of_words(train: Iterable[str], train_labels: np.ndarray, test: Iterable[str], test_labels: np.ndarray) -> float:
    """Return the test accuracy of logistic regression on the TF-IDF word vectors of texts.

    Raises:
        UserError: train has only one class, or no word occurs in two of its texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
    try:
        features = words.fit_transform(train)
        model = LogisticRegression(max_iter=200).fit(features, train_labels)
    except ValueError as error:
        raise UserError(f"bag of words: {error}; give the task more or longer examples") from None
    return float(100 * np.mean(model.predict(words.transform(test)) == test_labels))


def pair_cosine(train: Split, test: Split) -> float:
    """Return the test accuracy of predicting class 1 for pairs whose `Overlap` reaches a threshold.

    The threshold and the word weights of `Overlap` are fitted on train.
    """
    overlap = Overlap(train)
    threshold = best_threshold(overlap(train, overlap.rows), train.labels[overlap.rows])
    right = (overlap(test, np.arange(len(test))) >= threshold) == test.labels
    return 100 * int(right.sum()) / len(test)


class Overlap:
    """Similarity of the two documents of a pair: the cosine of their TF-IDF word vectors, 0 to 1.

    Words are hashed into 2^20 buckets. The weights of the buckets are fitted on at most COSINE_PAIRS evenly spaced
    pairs of `split`; `rows` holds the indices of these pairs. A bucket has the weight 0 if it occurs in fewer than 2 of
    the m distinct documents of these pairs, or in more than m / 5. Pairs are read in blocks of COSINE_PAIRS, so that
    memory use does not grow with the data.
    """

    def __init__(self, split: Split) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._words = HashingVectorizer(norm=None, alternate_sign=False, dtype=np.float32)
        # [pairs]: evenly spaced indices, because files may be sorted by label.
        self.rows = np.linspace(0, len(split) - 1, min(len(split), COSINE_PAIRS)).astype(np.int64)
        bags, _ = self._counts(split, self.rows)
        frequency = bags.getnnz(axis=0)  # [buckets]: number of documents with each bucket
        kept = (frequency >= 2) & (frequency <= bags.shape[0] / 5)
        self._rarity = np.where(kept, 1 + np.log((1 + bags.shape[0]) / (1 + frequency)), 0).astype(np.float32)

    def __call__(self, split: Split, examples: np.ndarray) -> np.ndarray:
        """Return the similarity of the two documents of each of these examples [n]."""
        from sklearn.preprocessing import normalize

        cosines = []
        for block in _blocks(len(examples), COSINE_PAIRS):
            bags, rows = self._counts(split, examples[block])
            # Sublinear term frequency 1 + log(count), in place; `bags.data` holds only the counts above 0.
            np.log(bags.data, out=bags.data)
            bags.data += 1
            bags = normalize(bags.multiply(self._rarity).tocsr())  # [m, buckets], each row of length 1
            cosines.append(np.asarray(bags[rows[:, 0]].multiply(bags[rows[:, 1]]).sum(axis=1)).ravel())
        return np.concatenate(cosines)

    def _counts(self, split: Split, examples: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the word counts [m, buckets] of the m distinct documents of n pairs, and row indices [n, 2].

        The row indices are the rows of the two documents of each pair in the word counts.
        """
        documents, rows = np.unique(split.index.reshape(-1, 2)[examples], return_inverse=True)
        return self._words.transform(texts_of(split, documents)), rows.reshape(-1, 2)


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the threshold with the highest accuracy on `labels` [n] if scores at or above it predict class 1.

    If several thresholds have the highest accuracy, the smallest is returned.
    """
    candidates = np.append(np.unique(scores), np.inf)  # with the threshold inf, every pair is class 0
    ones, zeros = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    # Number of ones at or above each candidate, plus number of zeros below it.
    correct = len(ones) - np.searchsorted(ones, candidates) + np.searchsorted(zeros, candidates)
    return float(candidates[correct.argmax()])


def texts_of(split: Split, documents: np.ndarray) -> Iterator[str]:
    """Yield the texts of the stored documents with these indices; their tokens must be bytes."""
    for document in split.stored(documents):
        yield text_of(document).decode("utf-8", errors="replace")


def unigram(train: LMWindows, test: LMWindows, vocabulary: int) -> float:
    """Return the test perplexity of a unigram model: the token frequencies of train with add-one smoothing."""
    _, targets = _predictions(test)
    return perplexity(_frequencies(train, vocabulary)[targets])


def bigram(train: LMWindows, val: LMWindows, test: LMWindows, vocabulary: int) -> float:
    """Return the test perplexity of a bigram model that is mixed with the unigram model.

    The probability of token b after token a is w * count(a b) / count(a .) + (1 - w) * unigram(b), with the counts of
    train and the weight w in BIGRAM_WEIGHTS that has the lowest perplexity on val. If no bigram of train begins
    with token a, the probability is unigram(b).
    """
    from scipy.sparse import csr_array

    first, second = train.tokens[:-1].astype(np.int64), train.tokens[1:].astype(np.int64)
    # [vocabulary, vocabulary], sparse; entries of equal bigrams are added.
    counts = csr_array((np.ones(len(first), dtype=np.int64), (first, second)), shape=(vocabulary, vocabulary))
    totals = np.bincount(first, minlength=vocabulary)
    frequencies = _frequencies(train, vocabulary)

    def seen(split: LMWindows) -> tuple[np.ndarray, np.ndarray]:
        """Return the bigram and the unigram probability of each of m targets, both [m]."""
        tokens, targets = _predictions(split)
        occurrences = np.asarray(counts[tokens, targets]).ravel()
        precedes = totals[tokens] > 0
        return np.where(precedes, occurrences / totals[tokens].clip(min=1), frequencies[targets]), frequencies[targets]

    def mixed(weight: float, after: np.ndarray, alone: np.ndarray) -> float:
        return perplexity(weight * after + (1 - weight) * alone)

    of_val, of_test = seen(val), seen(test)
    best = min(BIGRAM_WEIGHTS.tolist(), key=lambda weight: mixed(weight, *of_val))
    return mixed(best, *of_test)


def perplexity(probabilities: np.ndarray) -> float:
    """Return the perplexity, exp(-mean(log p)), of targets with the probabilities p [m]."""
    return float(np.exp(-np.log(probabilities).mean()))


def _frequencies(train: LMWindows, vocabulary: int) -> np.ndarray:
    """Return the probability of each token id [vocabulary]: its frequency in train with add-one smoothing."""
    counts = np.bincount(train.tokens, minlength=vocabulary) + 1
    return counts / counts.sum()


def _predictions(split: LMWindows) -> tuple[np.ndarray, np.ndarray]:
    """Return the input token and the target at every position of all windows, both [windows * context]."""
    rows = np.arange(len(split))
    return split.pad(rows, split.context).ravel().astype(np.int64), split.targets(rows).ravel()

"""Scaling is standardising signed logarithms, however the rows come in."""
import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from kit.scale import fit_scaler, scale, signed_log


def features(rng, rows=300):
    """Sizes over many decades, some negative, a constant and a rare flag."""
    return np.column_stack([
        rng.lognormal(8, 5, rows), -rng.lognormal(0, 3, rows), rng.choice([-2.0, 0.0, 7.0], rows),
        np.full(rows, 1e9), np.zeros(rows), np.full(rows, -2.0), np.arange(rows) == 3]).astype(np.float32)


def test_scaled_values_are_those_of_scikit_learn_on_signed_logarithms():
    rng = np.random.default_rng(1)
    x, new = features(rng), features(rng)
    reference = StandardScaler().fit(signed_log(x))
    varies = [0, 1, 2, 6]
    scaler = fit_scaler([x])
    for rows in (x, new):
        out = scale(rows, scaler)
        assert out.dtype == np.float32 and np.isfinite(out).all()
        np.testing.assert_allclose(out[:, varies], reference.transform(signed_log(rows))[:, varies], rtol=2e-6,
                                   atol=1e-6)
    np.testing.assert_allclose(scale(x, scaler)[:, varies].astype(float).mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scale(x, scaler)[:, varies].astype(float).std(axis=0), 1, rtol=1e-6)


def test_a_column_that_never_varied_is_always_zero():
    rng = np.random.default_rng(2)
    scaler = fit_scaler([features(rng), features(rng, 7)])
    other = features(rng) + 5
    assert (scaler.factor[[3, 4, 5]] == 0).all() and (scale(other, scaler)[:, [3, 4, 5]] == 0).all()
    assert (scaler.factor[[0, 1, 2, 6]] > 0).all()


def test_parts_merge_into_the_whole_in_any_cut_and_a_generator_will_do():
    rng = np.random.default_rng(3)
    x = features(rng)
    whole = fit_scaler([x])
    for _ in range(10):
        cuts = np.sort(rng.integers(0, len(x) + 1, 6))               # some parts are empty
        merged = fit_scaler(part for part in np.split(x, cuts))
        np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(merged.factor, whole.factor, rtol=1e-9)


def test_a_large_mean_does_not_cancel_a_small_spread():
    x = 1e30 * (1 + np.random.default_rng(4).random((1000, 1)) * 1e-5)    # logarithms around 69 +- 3e-6
    scaler = fit_scaler(np.split(x, 10))
    assert 1 / scaler.factor[0] == pytest.approx(np.std(signed_log(x)), rel=1e-6)


@pytest.mark.parametrize("arrays", [[], [np.zeros((0, 3))]])
def test_a_scaler_needs_a_row(arrays):
    with pytest.raises(ValueError, match="^a scaler needs at least one row; were there no training graphs\\?$"):
        fit_scaler(arrays)

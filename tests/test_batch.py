"""What a step trains on: draws against laws and slow twins, memory against counting."""
from kit.batch import nth_graph


def test_each_pass_shows_each_graph_once_in_a_new_order():
    for count in (1, 2, 5):
        passes = [[nth_graph(count * p + place, count, seed=3) for place in range(count)] for p in range(20)]
        assert all(sorted(one) == list(range(count)) for one in passes)
    assert len({tuple(one) for one in passes}) > 10
    assert [nth_graph(p, 5, 3) for p in range(100)] != [nth_graph(p, 5, 4) for p in range(100)]



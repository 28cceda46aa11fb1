package noise

import "testing"

// TestRange draws numbers of each kind: they fill their range and have its
// middle as their mean.
func TestRange(t *testing.T) {
	t.Parallel()
	const draws = 10_000
	for name, c := range map[string]struct {
		draw      func(n int64) float64
		low, high float64
	}{
		"white": {func(n int64) float64 { return White(7, n) }, -1, 1},
		"cell":  {func(n int64) float64 { return Cell(7, n, 1) }, 0, 1},
		"slow":  {func(n int64) float64 { return Slow(7, n, 3) }, 0, 1},
	} {
		least, most, sum := c.high, c.low, 0.0
		for n := range int64(draws) {
			v := c.draw(n)
			least, most, sum = min(least, v), max(most, v), sum+v
		}
		span := c.high - c.low
		if least < c.low || least > c.low+span/50 || most > c.high || most < c.high-span/50 {
			t.Errorf("%s: %v to %v, want %v to %v", name, least, most, c.low, c.high)
		}
		if mean, want := sum/draws, (c.low+c.high)/2; mean < want-span/50 || mean > want+span/50 {
			t.Errorf("%s: mean %v, want %v", name, mean, want)
		}
	}
}

// TestPeriod follows two periods: a cell keeps its value for one, and a slow
// number goes evenly from one cell to the next.
func TestPeriod(t *testing.T) {
	t.Parallel()
	const period = 8
	from, to := Cell(3, 0, period), Cell(3, period, period)
	if from == to {
		t.Fatalf("two cells have %v", from)
	}
	for n := range int64(period) {
		if got := Cell(3, n, period); got != from {
			t.Errorf("cell at %d is %v, want %v", n, got, from)
		}
		if got, want := Slow(3, n, period), from+(to-from)*float64(n)/period; got != want {
			t.Errorf("slow at %d is %v, want %v", n, got, want)
		}
	}
}

// TestSeeds checks that equal seeds have equal numbers, and others have not.
func TestSeeds(t *testing.T) {
	t.Parallel()
	one, again := White(1, 5), White(1, 5)
	if seed, step := White(2, 5), White(1, 6); one != again || one == seed || one == step {
		t.Errorf("%v and again %v; of another seed %v, at another step %v", one, again, seed, step)
	}
}

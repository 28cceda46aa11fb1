package derived

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// reference returns the median by sorting.
func reference(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// normals returns n numbers of normal noise.
func normals(r *rand.Rand, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = r.NormFloat64()
	}
	return values
}

func TestMediansMatchSortedNumbers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		values := normals(r, 1+r.IntN(70))
		if r.IntN(2) == 0 { // like a sensor's: many are the same
			for i := range values {
				values[i] = math.Round(values[i])
			}
		}
		var w window
		for _, v := range append(normals(r, r.IntN(70)), values...) {
			w.push(v)
		}
		last := values[max(0, len(values)-windowSize):]
		center := reference(last)
		if len(values) >= windowSize && w.median() != center {
			t.Fatalf("the window of %v has median %g, want %g", last, w.median(), center)
		}
		fixture.Need(t, Median(slices.Clone(values)), reference(values), "the median of %v is", values)
		distances := make([]float64, w.n)
		for i, v := range w.values[:w.n] {
			distances[i] = math.Abs(v - w.median())
		}
		if got, want := w.mad(w.median()), reference(distances); got != want ||
			mad(slices.Clone(w.values[:w.n]), w.median()) != want {
			t.Fatalf("the deviation of %v is %g, want %g", w.sorted[:w.n], got, want)
		}
	}
	fixture.If(t, !math.IsNaN(Median(nil)) || !math.IsNaN(new(window).median()) || !math.IsNaN(new(window).mad(0)),
		"nothing has a median")
}

func TestMomentsMatchTheWindow(t *testing.T) {
	var w window
	w.push(1e9) // it leaves the window without a trace
	for i := range windowSize {
		w.push(float64(i % 2))
	}
	if mean, deviation := w.moments(); mean != 0.5 || far(deviation, 0.5042, 1e-4) {
		t.Errorf("mean %g, deviation %g of zeros and ones", mean, deviation)
	}
}

func TestScoresDoNotDependOnTheUnit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		values, v := normals(r, 31), r.NormFloat64()
		score := func(scale, shift float64) float64 {
			all := make([]float64, len(values))
			for i := range all {
				all[i] = values[i]*scale + shift
			}
			m := Median(all)
			return robustZ(v*scale+shift, m, mad(all, m), 0)
		}
		a, b := score(1, 0), score(4, 1000)
		fixture.Stop(t, far(a, b, 1e-6), "the score is %g, in another unit %g", a, b)
	}
	fixture.Equal(t, robustZ(65, 60, 0, 1), 5, "5 degrees over a sensor that never moves")
	fixture.Equal(t, zscore(1, 1, 0, 0), 0, "no deviation at all")
}

func TestTheilSenFindsTheTrend(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	var times, line []float64
	for i := range 30 {
		times, line = append(times, float64(30*i)), append(line, 7+2*float64(30*i))
	}
	if slope, low, high := theilSen(times, line, nil); slope != 2 || low != 2 || high != 2 {
		t.Errorf("the slope of a line is %g in [%g, %g], want 2", slope, low, high)
	}
	covered, excluded, wild := 0, 0, 0
	const runs = 500
	for range runs {
		noisy, flat, bad := slices.Clone(line), normals(r, 30), slices.Clone(line)
		for i, n := range normals(r, 30) {
			noisy[i] += 100 * n
			bad[i] += n
		}
		if slope, low, high := theilSen(times, noisy, nil); low <= 2 && 2 <= high && low <= slope && slope <= high {
			covered++
		}
		if _, low, high := theilSen(times, flat, nil); low > 0 || high < 0 {
			excluded++
		}
		for _, i := range r.Perm(30)[:6] {
			bad[i] += 1e6 * r.NormFloat64()
		}
		if slope, _, _ := theilSen(times, bad, nil); far(slope, 2, 0.05) {
			wild++
		}
	}
	fixture.If(t, covered < runs*92/100 || covered > runs*99/100,
		"the interval holds the slope in %d of %d cases, want 95 %%", covered, runs)
	fixture.AtMost(t, excluded, runs*8/100, "… of %d flat series have a trend, want 5 %%", runs)
	fixture.AtMost(t, wild, 0, "a fifth of wild points moved … of %d slopes", runs)
	if slope, low, high := theilSen([]float64{0, 1, 2}, []float64{0, 3, 6}, nil); slope != 3 || low != 3 || high != 3 {
		t.Errorf("the slope of three points is %g in [%g, %g], want 3", slope, low, high)
	}
	if slope, _, _ := theilSen([]float64{1, 1}, []float64{1, 2}, nil); !math.IsNaN(slope) {
		t.Errorf("two points at one time have slope %g", slope)
	}
}

// TestVarianceOfASeriesWithoutATrend checks Kendall's formula, (n(n-1)(2n+5)
// - the same for each tie) / 18.
func TestVarianceOfASeriesWithoutATrend(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{1}, 0}, {[]float64{2, 1}, 1}, {[]float64{3, 1, 2}, 66. / 18}, {[]float64{4, 2, 1, 3, 5}, 300. / 18},
		{[]float64{1, 1, 2}, 48. / 18}, {[]float64{1, 2, 1, 2, 1}, (300. - 66 - 18) / 18}, {[]float64{7, 7, 7, 7}, 0},
	} {
		got := kendallVariance(c.values)
		fixture.If(t, far(got, c.want, 1e-9), "%v: %g, want %g", c.values, got, c.want)
	}
}

func TestCUSUMIsBounded(t *testing.T) {
	var up cusum
	up.add(math.MaxFloat64)
	fixture.Equal(t, up.larger(), cusumMost, "the sum is")
}

func TestEWMAForgets(t *testing.T) {
	fixture.Equal(t, ewma(math.NaN(), 5, time.Second, time.Minute), 5, "the first value gives")
	one, two := ewma(0, 1, time.Minute, time.Minute), ewma(ewma(0, 1, 30*time.Second, time.Minute),
		1, 30*time.Second, time.Minute)
	fixture.If(t, far(one, 1-1/math.E, 1e-12) || far(one, two, 1e-12),
		"after tau: %g and in two steps %g, want 1-1/e", one, two)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// numbers converts bytes into numbers like those of sensors.
func numbers(data []byte) (values []float64) {
	for _, b := range data {
		values = append(values, float64(int8(b))/4)
	}
	return values
}

func FuzzTheilSen(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 200, 6})
	f.Fuzz(func(t *testing.T, data []byte) {
		values := numbers(data[:min(len(data), 60)])
		times, tilted := make([]float64, len(values)), make([]float64, len(values))
		for i, v := range values {
			times[i], tilted[i] = float64(i), v+8*float64(i)+100
		}
		slope, low, high := theilSen(times, values, nil)
		if len(values) < 3 {
			return
		}
		fixture.Stop(t, !usable(slope) || !(low <= slope && slope <= high),
			"%v: %g in [%g, %g]", values, slope, low, high)
		s, _, _ := theilSen(times, tilted, nil)
		fixture.If(t, far(s, slope+8, 1e-9), "%v: the slope is %g, tilted by 8 %g", values, slope, s)
	})
}

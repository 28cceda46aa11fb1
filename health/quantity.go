package health

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpusteward/health/incident"
)

// A Quantity is the place of a value in a check's sentence: {value}, {percent} of
// a ratio, {bytes}, {time} of seconds, or {count:fan|fans} with what is counted.
// {apart} is a ratio to something else, and {margin} are degrees to a limit:
// "5 % below", "at". {recovery} is what the driver asks for.
type Quantity struct {
	Unit      string
	One, Many string // of a count
}

var quantities = regexp.MustCompile(`\{(value|percent|bytes|time|apart|margin|recovery|count)(?::([^|}]+)\|([^}]+))?\}`)

// Quantities replaces the quantities in a sentence.
func Quantities(detail string, by func(Quantity) string) string {
	return quantities.ReplaceAllStringFunc(detail, func(place string) string {
		m := quantities.FindStringSubmatch(place)
		return by(Quantity{m[1], m[2], m[3]})
	})
}

// Of writes a value.
func (q Quantity) Of(v float64) string {
	switch q.Unit {
	case "percent":
		return plain(100*v, 3) + " %"
	case "bytes":
		for _, unit := range []string{"bytes", "KiB", "MiB", "GiB"} {
			if math.Abs(v) < 1024 || unit == "GiB" {
				return plain(v, 3) + " " + unit
			}
			v /= 1024
		}
	case "time":
		return spoken(v)
	case "apart":
		return Beside(-v, plain(100*math.Abs(v), 3)+" %")
	case "margin":
		degrees := Quantity{"count", "degree", "degrees"}
		return Beside(v, degrees.Of(math.Abs(v))+" Celsius")
	case "recovery":
		return incident.Recovery(int(v))
	case "count":
		return plain(v, 4) + " " + q.noun(v)
	}
	return plain(v, 4)
}

// Beside says on which side of something else a value is, from the room that it
// has below.
func Beside(room float64, distance string) string {
	switch {
	case room < 0:
		return distance + " above"
	case room > 0:
		return distance + " below"
	}
	return "at"
}

// noun returns what is counted, by the number that is written.
func (q Quantity) noun(v float64) string {
	if plain(v, 4) == "1" {
		return q.One
	}
	return q.Many
}

// plain writes v with so many digits, and all of those before the point. Only
// what is tiny has an exponent.
func plain(v float64, digits int) string {
	if math.Abs(v) >= math.Pow10(digits) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', digits, 64)
}

// longestTime is the longest time in seconds that a sentence says.
const longestTime = 1e9

// spoken writes seconds in their two largest units: "1 hour 5 minutes".
func spoken(seconds float64) string {
	if seconds < 1 {
		return "less than a second"
	}
	units := []struct {
		of        time.Duration
		one, many string
	}{{day, "day", "days"}, {time.Hour, "hour", "hours"}, {time.Minute, "minute", "minutes"},
		{time.Second, "second", "seconds"}}
	left, parts := time.Duration(min(seconds, longestTime)*float64(time.Second)).Round(time.Second), []string(nil)
	for _, u := range units {
		n := left / u.of
		left -= n * u.of
		if n > 0 {
			parts = append(parts, fmt.Sprint(int(n), " ", Quantity{"count", u.one, u.many}.noun(float64(n))))
		}
		if len(parts) == 2 || len(parts) == 1 && n == 0 {
			break
		}
	}
	return strings.Join(parts, " ")
}

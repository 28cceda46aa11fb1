package crash

import (
	"fmt"
	"strings"
	"time"

	"gpusteward/internal/wire"
)

// bigPage is the size in which the driver maps GPU memory, bytes: closer than this, an
// address is more likely an allocation's neighbour than a wild pointer.
const bigPage = 2 << 20

// A place is the allocations that explain an address, nil where there is none.
type place struct {
	in           *wire.Allocation // has it, the last one made
	was          *wire.Allocation // had it, the last one freed
	below, above *wire.Allocation // the nearest ones beside it
}

// placeOf finds the place of an address at a time (CLOCK_MONOTONIC, ns).
func placeOf(address uint64, at int64, all []wire.Allocation) (p place) {
	for i := range all {
		a := &all[i]
		live := a.Freed == 0 || a.Freed > at
		offset := address - a.Address
		switch {
		case a.Made > at:
		case offset < a.Bytes && live && (p.in == nil || a.Made > p.in.Made):
			p.in = a
		case offset < a.Bytes && !live && (p.was == nil || a.Freed > p.was.Freed):
			p.was = a
		case !live || offset < a.Bytes:
		case address >= a.Address && (p.below == nil || beyond(address, a) < beyond(address, p.below)):
			p.below = a
		case address < a.Address && (p.above == nil || a.Address < p.above.Address):
			p.above = a
		}
	}
	return p
}

// locate says where an address lay at a time (CLOCK_MONOTONIC, ns), as the end of a sentence
// that begins with the address. unlisted allocations are missing in all.
func locate(address uint64, at int64, all []wire.Allocation, unlisted uint64) string {
	p := placeOf(address, at, all)
	made := func(a *wire.Allocation) string {
		return fmt.Sprintf("an allocation of %s, made %s before", bytes(a.Bytes), ago(at-a.Made))
	}
	isBelow := p.below != nil && (p.above == nil || beyond(address, p.below) <= p.above.Address-address)
	switch {
	case p.in != nil:
		return fmt.Sprintf("lies in %s, %s from its beginning", made(p.in), bytes(address-p.in.Address))
	case p.was != nil:
		return fmt.Sprintf("lies in memory that was freed %s before: %s", ago(at-p.was.Freed), made(p.was))
	case isBelow && beyond(address, p.below) < max(p.below.Bytes, bigPage):
		return fmt.Sprintf("is %s beyond the end of %s", bytes(beyond(address, p.below)), made(p.below))
	case !isBelow && p.above != nil && p.above.Address-address <= max(p.above.Bytes, bigPage):
		return fmt.Sprintf("is %s before the beginning of %s", bytes(p.above.Address-address), made(p.above))
	case unlisted > 0:
		return fmt.Sprintf("is in no known allocation of this program; %d are not known", unlisted)
	}
	return "is in no allocation of this program"
}

// beyond returns the distance of an address from the end of an allocation below it.
func beyond(address uint64, a *wire.Allocation) uint64 { return address - a.Address - a.Bytes }

// bytes returns a number of bytes for people.
func bytes(n uint64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1<<10 || n%(1<<10) != 0 && n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, i := float64(n)/(1<<10), 0
	for ; v >= 1<<10 && i < len(units)-1; i++ {
		v /= 1 << 10
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[i]
}

// ago returns a time in ns for people.
func ago(ns int64) string {
	switch d := time.Duration(max(ns, 0)); {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.1f min", d.Minutes())
	default:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
}

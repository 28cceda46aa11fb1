package jobs

import (
	"cmp"
	"slices"

	"gpusteward/internal/wire"
)

// A place is a rank of a communicator, as its process tells it.
type place struct {
	*process
	*communicator
}

// placesOf returns the group's ranks in their order.
func placesOf(id uint64, group []*process) []place {
	all := make([]place, len(group))
	for i, p := range group {
		all[i] = place{p, p.in(id)}
	}
	return all
}

// find returns the rank's place; false: it is on another host.
func find(all []place, rank uint32) (place, bool) {
	i, found := slices.BinarySearchFunc(all, rank, func(p place, rank uint32) int { return cmp.Compare(p.Rank, rank) })
	if !found {
		return place{}, false
	}
	return all[i], true
}

// exchanges reports whether the rank has sent or received.
func (c *communicator) exchanges() bool { return c.Peers[0].There }

// with returns what the rank has exchanged with another one; false: it is not
// known, because it has more peers than are counted.
func (c *communicator) with(rank uint32) (wire.Peer, bool) {
	for _, to := range c.Peers {
		if to.There && to.Rank == rank {
			return to, true
		}
	}
	return wire.Peer{}, !c.Peers[wire.Peers-1].There
}

// owes reports whether the other rank has not called what this one exchanges
// with it.
func (c *communicator) owes(other *communicator) bool {
	here, known := c.with(other.Rank)
	there, alsoKnown := other.with(c.Rank)
	return known && alsoKnown && (int16(there.Received-here.Sent) > 0 || int16(there.Sent-here.Received) > 0)
}

// debtor returns the rank for whose sends or receives others wait, and that
// waits for none; nil: there is none, or it may wait for a rank on another host.
func debtor(all []place, at int64) *process {
	var found []place
	for _, p := range all {
		owes, waits := false, false
		for _, to := range p.Peers {
			other, here := find(all, to.Rank)
			owes = owes || here && p.owes(other.communicator)
			waits = waits || here && other.owes(p.communicator) || !here && to.There && p.blocked(at)
		}
		if owes && !waits {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return slices.MinFunc(found, func(a, b place) int {
		return cmp.Or(cmp.Compare(truth(a.awaits()), truth(b.awaits())),
			cmp.Compare(truth(a.blocked(at)), truth(b.blocked(at))), cmp.Compare(a.last, b.last))
	}).process
}

// before returns the rank whose GPU has not come to an exchange in which its
// peer's GPU is, and waits for nobody; nil: there is none.
func before(all []place) *process {
	for _, p := range all {
		for _, to := range p.Peers {
			if other, here := find(all, to.Rank); here && to.Before && !p.awaits() {
				if back, _ := other.with(p.Rank); back.Inside {
					return p.process
				}
			}
		}
	}
	return nil
}

// awaits reports whether the process's GPU is in a collective or an exchange, in
// which it waits for other ranks.
func (p *process) awaits() bool {
	return slices.ContainsFunc(p.communicators[:], func(c communicator) bool { return c.inside() })
}

// inside reports the same of one communicator.
func (c *communicator) inside() bool {
	return c.there && (c.Begun > c.Ended || slices.ContainsFunc(c.Peers[:], func(to wire.Peer) bool { return to.Inside }))
}

package steps

// A sign is a symbol, or two symbols in a row of one thread, or four and the last one of
// the thread that launched before: it can mark a place in the step. The finder looks for
// signs that recur regularly.
type sign struct {
	hash   uint32
	at     uint32  // size of all content when it was seen last
	span   uint32  // content between the last two times
	pause  float32 // mean pause before it, as a logarithm
	turn   uint16  // changes of the launching thread when it was seen last
	turns  uint8   // between the last two times
	streak uint8   // times in a row after a like span, or as many turns
}

// enough is the streak with which a sign is tried as the mark of a step.
const enough = 3

// table holds the signs of one order. A new one takes the place of one that
// does not recur.
type table [512]sign

// see returns the sign with its new streak; nil if there is no room for it.
func (t *table) see(hash, at, turn uint32, pause float32) *sign {
	s := &t[hash%uint32(len(t))]
	if s.hash != hash {
		other := &t[(hash^1)%uint32(len(t))]
		if other.hash != hash {
			return t.replace(s, other, hash, at, turn, pause)
		}
		s = other
	}
	const many = 255
	span, turns := at-s.at, uint8(min(uint16(turn)-s.turn, many))
	if alike(span, s.span) || turns == s.turns && turns >= 2 && turns < many {
		s.streak = min(s.streak+1, 250)
	} else {
		s.streak = 0
	}
	s.at, s.span, s.turn, s.turns = at, span, uint16(turn), turns
	s.pause = lower(s.pause, pause)
	return s
}

// replace takes a chance: a sign must stay for a while to be seen again, even
// if there are many more signs than room.
func (t *table) replace(s, other *sign, hash, at, turn uint32, pause float32) *sign {
	if at-other.at > at-s.at {
		s = other
	}
	recurs := s.streak > 0 && at-s.at < 4*s.span
	if s.hash != 0 && (recurs || (hash>>16+at)%8 != 0) {
		return nil
	}
	*s = sign{hash: hash, at: at, turn: uint16(turn), pause: pause}
	return s
}

// alike says whether two sizes differ by an eighth at most.
func alike(a, b uint32) bool {
	return max(a, b)-min(a, b) <= max(a, b)/8
}

// lower follows the lower values: a pause that is always there is the script's,
// and others are the driver's when its queue is full.
func lower(mean, value float32) float32 {
	if value < mean {
		return mean + (value-mean)/2
	}
	return mean + (value-mean)/16
}

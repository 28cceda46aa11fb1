package incident

import "gpusteward/collectors/host"

// A Cursor says how much of the kernel's log was handled, so that a restart of
// the agent handles nothing twice and misses nothing. The zero Cursor is that
// of an agent that never ran. It is to be saved after the incidents are.
type Cursor struct {
	Boot string `json:"boot_id"`
	Next uint64 `json:"next"` // sequence of the first record that was not handled
}

// Pass reports whether r, of the boot with this id, was not handled yet, and
// moves c behind it.
func (c *Cursor) Pass(boot string, r host.Record) bool {
	if c.Boot != boot {
		*c = Cursor{Boot: boot}
	}
	if r.Sequence < c.Next {
		return false
	}
	c.Next = r.Sequence + 1
	return true
}

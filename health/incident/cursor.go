package incident

import "gpusteward/collectors/host"

// A Cursor marks the part of the kernel's log that was handled, so that a
// restart of the agent handles nothing twice and misses nothing. The zero Cursor
// is that of an agent that never ran. The caller saves it after the incidents.
type Cursor struct {
	Boot string `json:"boot_id"`
	Next uint64 `json:"next"` // sequence number of the first record that was not handled
}

// Pass reports whether r, a record of the boot with this ID, is new, and moves c
// behind it.
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

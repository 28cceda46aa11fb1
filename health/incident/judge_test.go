package incident

import "testing"

// TestChecksOfXIDs checks which check reports an XID.
func TestChecksOfXIDs(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]string{64: "remap_failed", 79: "gpu_lost", 48: "xid_fatal", 13: "",
		9999: "xid_unknown"} {
		i := &openIncident{Event: Event{What: WhatXID, Code: code}}
		if i.judge(); i.Check != want {
			t.Errorf("XID %d is reported by %q, want %q", code, i.Check, want)
		}
	}
}

package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestXIDs(t *testing.T) {
	t.Parallel()
	all := XIDs()
	if len(all) != 177 || len(SXids()) != 170 {
		t.Errorf("%d XIDs and %d SXids, want 177 and 170", len(all), len(SXids()))
	}
	for code, x := range all {
		if x.Code != code || x.Mnemonic == "" || x.Description == "" || x.Severity == None || x.WhoActs == "" ||
			x.Action == "" || strings.ContainsAny(x.Action, "*") {
			t.Errorf("%+v is incomplete", x)
		}
		if !slices.Contains(Classes, x.Class) {
			t.Errorf("XID %d: category %q has no class in classes.tsv", code, x.Category)
		}
		// these concern virtual machines
		if x.Severity >= Critical && !x.Hardware() && !slices.Contains([]int{78, 151}, code) {
			t.Errorf("XID %d is %v and nobody's fault in faults.tsv", code, x.Severity)
		}
	}
	for code, want := range map[int]Class{31: ApplicationFault, 79: HardwareFault, 94: MemoryFault, 119: DriverCrash,
		74: InterconnectFault, 109: ComputeTimeout, 167: HardwareFault} {
		fixture.Equal(t, all[code].Class, want, "XID %d is", code)
	}
}

func TestBlameForAnXID(t *testing.T) {
	t.Parallel()
	for code, x := range XIDs() {
		if x.Tenant() && (x.Hardware() || x.Severity >= Critical) {
			t.Errorf("XID %d is a tenant's fault, and the hardware's or critical", code)
		}
	}
	for _, code := range []int{8, 13, 31, 32, 39, 43, 45, 68, 69, 80, 137} {
		if !XIDs()[code].Tenant() {
			t.Errorf("XID %d would condemn a GPU", code)
		}
	}
	for _, code := range []int{48, 62, 79, 95, 119, 140} {
		if !XIDs()[code].Hardware() {
			t.Errorf("XID %d would punish a tenant", code)
		}
	}
	for _, code := range []int{13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 154} {
		if !slices.Contains(AlertableXIDs(), code) {
			t.Errorf("XID %d has lost its counter that begins at 0", code)
		}
	}
	if n := len(AlertableXIDs()); !slices.IsSorted(AlertableXIDs()) || n > 60 || slices.Contains(AlertableXIDs(), 1) {
		t.Errorf("%d alertable XIDs: %v", n, AlertableXIDs())
	}
}

// TestFactsAreConsistent reads the tables that refer to each other.
func TestFactsAreConsistent(t *testing.T) {
	t.Parallel()
	categories := map[string]bool{}
	for _, x := range XIDs() {
		categories[x.Category] = true
	}
	readFacts("classes", func(row map[string]string) error {
		if !categories[row["category"]] {
			t.Errorf("classes.tsv: no XID is of category %q", row["category"])
		}
		return nil
	})
	readFacts("faults", func(row map[string]string) error {
		if row["fault"] != "tenant" && row["fault"] != "hardware" {
			t.Errorf("faults.tsv: XID %s is the fault of %q", row["xid"], row["fault"])
		}
		return nil
	})
	for name, h := range happenings() {
		if name == WhatXID || name == WhatSXid {
			continue
		}
		if !slices.Contains(Classes, h.class) || h.severity == None || h.text == "" {
			t.Errorf("%+v is incomplete", h)
		}
	}
	for _, c := range companions() {
		for _, p := range []pattern{c.what, c.after} {
			if _, ok := happenings()[p.what]; !ok {
				t.Errorf("companions.tsv: there is no %q", p.what)
			}
			if _, ok := XIDs()[p.code]; !ok && p.what == WhatXID && p.code != anyCode {
				t.Errorf("companions.tsv: there is no XID %d", p.code)
			}
		}
	}
	for value, want := range map[int]action{0: {"NONE", Info, false}, 1: {"RESET_GPU", Critical, true},
		2: {"RESTART_BM", Emergency, true}, 4: {"DRAIN_RESET", Critical, true}, 5: {"RECOVER_IMEX", Critical, false}} {
		fixture.Equal(t, actions()[value], want, "recovery action %d is", value)
	}
	for _, table := range []string{"xid", "kernel", "events", "actions", "companions", "words"} {
		readFacts(table, func(row map[string]string) error {
			action := strings.TrimSuffix(row["action"]+row["immediate_action"], "*")
			if action != "" && remedies()[action] == "" {
				t.Errorf("%s.tsv: nothing says in words what %q is", table, action)
			}
			return nil
		})
	}
}

// TestMalformedTableIsRefused holds that the reader of a table of facts
// reports a mistake with its line.
func TestMalformedTableIsRefused(t *testing.T) {
	t.Parallel()
	defer func() {
		fixture.Equal(t, fmt.Sprint(recover()), "data/actions.tsv:2: no", "it is")
	}()
	readFacts("actions", func(map[string]string) error { return fmt.Errorf("no") })
}

package incident

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors"
)

// An Entity is the object of a check: the node (the zero Entity), a GPU, one of
// its links, a tenant or a workload on it, or another device of the node.
// Comparable.
type Entity struct {
	GPU      string `json:"gpu,omitempty"`      // NVML index
	UUID     string `json:"uuid,omitempty"`     // of the GPU
	Link     string `json:"link,omitempty"`     // NVLink of the GPU
	Tenant   string `json:"tenant,omitempty"`   // the subject of a quota, on the GPU or on the node
	Workload string `json:"workload,omitempty"` // likewise; of the tenant if that is set
	Device   string `json:"device,omitempty"`   // an NVSwitch by its PCI address, a port, a part of the agent
}

// Parent returns the GPU that e belongs to, or the node.
func (e Entity) Parent() Entity { return Entity{GPU: e.GPU, UUID: e.UUID} }

// Parts returns e's labels that are not empty, as name and value.
func (e Entity) Parts() (all [][2]string) {
	for _, p := range [][2]string{{"gpu", e.GPU}, {"uuid", e.UUID}, {"link", e.Link}, {"tenant", e.Tenant},
		{"workload", e.Workload}, {"device", e.Device}} {
		if p[1] != "" {
			all = append(all, p)
		}
	}
	return all
}

// String returns e as people and `gpusteward ack` write it: "node", "gpu=3",
// "gpu=3,link=7".
func (e Entity) String() string {
	var s []string
	for _, p := range e.Parts() {
		if p[0] != "uuid" || e.GPU == "" {
			s = append(s, p[0]+"="+p[1])
		}
	}
	if s == nil {
		return "node"
	}
	return strings.Join(s, ",")
}

// Name returns the entity as it stands in a sentence: "link 7 of GPU 3".
func (e Entity) Name() string {
	switch {
	case e.Device != "":
		return e.Device
	case e.Link == "all":
		return "GPU " + e.GPU
	case e.Link != "":
		return "link " + e.Link + " of GPU " + e.GPU
	case e.Workload != "" || e.Tenant != "":
		return e.who() + e.where()
	case e.GPU != "":
		return "GPU " + e.GPU
	case e.UUID != "":
		return "GPU " + e.UUID
	}
	return "the node"
}

// who names the workload, the tenant, or the workload as one of the tenant's.
func (e Entity) who() string {
	switch {
	case e.Tenant == "":
		return e.Workload
	case e.Workload == "":
		return "tenant " + e.Tenant
	}
	return e.Workload + " of tenant " + e.Tenant
}

// where names the GPU that e is on, if there is one.
func (e Entity) where() string {
	if e.GPU == "" {
		return ""
	}
	return " on GPU " + e.GPU
}

// Compare orders entities: by GPU, then by the parts below it.
func (e Entity) Compare(o Entity) int {
	return cmp.Or(cmp.Compare(len(e.GPU), len(o.GPU)), cmp.Compare(e.GPU, o.GPU), cmp.Compare(e.UUID, o.UUID),
		cmp.Compare(len(e.Link), len(o.Link)),
		cmp.Compare(e.Link, o.Link), cmp.Compare(e.Tenant, o.Tenant), cmp.Compare(e.Workload, o.Workload),
		cmp.Compare(e.Device, o.Device))
}

// Below are the labels of the parts of entities below a GPU or the node.
var Below = []string{"link", "tenant", "workload", "device"}

// Part returns the part of e that a label names; nil for any other label.
func (e *Entity) Part(label string) *string {
	switch label {
	case "gpu":
		return &e.GPU
	case "uuid":
		return &e.UUID
	case "link":
		return &e.Link
	case "tenant":
		return &e.Tenant
	case "workload":
		return &e.Workload
	case "device":
		return &e.Device
	}
	return nil
}

// EntityOf returns the entity of a sample: its labels gpu and uuid, and those of
// Below that are listed in by.
func EntityOf(s collectors.Sample, by []string) (e Entity) {
	for i, name := range s.Metric.Labels {
		if part := e.Part(name); part != nil && (name == "gpu" || name == "uuid" || slices.Contains(by, name)) {
			*part = s.Labels[i]
		}
	}
	return e
}

// ParseEntity reads an entity as String writes it, and a GPU by its index or
// UUID alone: "node", "3", "gpu=3,link=7", "GPU-5b6d...". Missing parts are
// empty: a GPU that is given by its index has no UUID.
func ParseEntity(s string) (Entity, error) {
	fail := func(format string, a ...any) error {
		return fmt.Errorf(`entity %q: %s; it may be "node", "3", "gpu=3,link=7", "tenant=NAME", "workload=NAME", `+
			`"device=NAME" or a GPU's UUID`, s, fmt.Sprintf(format, a...))
	}
	switch {
	case s == "node":
		return Entity{}, nil
	case isIndex(s):
		return Entity{GPU: s}, nil
	case strings.HasPrefix(s, "GPU-") && !strings.ContainsAny(s, ",="):
		return Entity{UUID: s}, nil
	}
	var e Entity
	var last *string
	for piece := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(piece, "=")
		field := e.Part(name)
		switch {
		case field == nil && last != nil:
			*last += "," + piece // a name may hold a comma
			continue
		case field == nil:
			return Entity{}, fail("%q is not a part of an entity", name)
		case *field != "":
			return Entity{}, fail("%s is given twice", name)
		case value == "":
			return Entity{}, fail("%s is empty", name)
		}
		*field, last = value, field
	}
	switch {
	case e.GPU != "" && !isIndex(e.GPU):
		return Entity{}, fail("gpu is an index")
	case e.Link != "" && e.GPU == "" && e.UUID == "":
		return Entity{}, fail("a link belongs to a GPU")
	}
	return e, nil
}

// isIndex reports whether s is a number as NVML's indices are written.
func isIndex(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == s
}

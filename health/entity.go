package health

import (
	"cmp"
	"strings"
)

// An Entity is what a check judges: the node (the zero Entity), a GPU, one of
// its links or workloads, or another device of the node. Comparable.
type Entity struct {
	GPU      string `json:"gpu,omitempty"`      // NVML index
	UUID     string `json:"uuid,omitempty"`     // of the GPU
	Link     string `json:"link,omitempty"`     // NVLink of the GPU
	Workload string `json:"workload,omitempty"` // on the GPU, or on the node
	Device   string `json:"device,omitempty"`   // an NVSwitch by its PCI address, a port, a part of the agent
}

// Parent returns the GPU that e belongs to, or the node.
func (e Entity) Parent() Entity { return Entity{GPU: e.GPU, UUID: e.UUID} }

// parts returns e's labels that are not empty, as name and value.
func (e Entity) parts() (all [][2]string) {
	for _, p := range [][2]string{{"gpu", e.GPU}, {"uuid", e.UUID}, {"link", e.Link}, {"workload", e.Workload}, {"device", e.Device}} {
		if p[1] != "" {
			all = append(all, p)
		}
	}
	return all
}

// String returns e as people and gpusteward ack write it: "node", "gpu=3",
// "gpu=3,link=7".
func (e Entity) String() string {
	var s []string
	for _, p := range e.parts() {
		if p[0] != "uuid" || e.GPU == "" {
			s = append(s, p[0]+"="+p[1])
		}
	}
	if s == nil {
		return "node"
	}
	return strings.Join(s, ",")
}

// compare orders entities: by GPU, then by what is below it.
func (e Entity) compare(o Entity) int {
	return cmp.Or(cmp.Compare(len(e.GPU), len(o.GPU)), cmp.Compare(e.GPU, o.GPU), cmp.Compare(e.UUID, o.UUID), cmp.Compare(len(e.Link), len(o.Link)),
		cmp.Compare(e.Link, o.Link), cmp.Compare(e.Workload, o.Workload), cmp.Compare(e.Device, o.Device))
}

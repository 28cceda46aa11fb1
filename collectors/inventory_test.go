package collectors

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/collectors/gpu"
	"gpusteward/internal/fixture"
)

func TestInventory(t *testing.T) {
	id := func(i int, uuid, pci string) gpu.ID { return gpu.ID{Index: i, UUID: uuid, PCI: pci, Minor: i} }
	uuids := func(v *inventory) string {
		var all []string
		for _, id := range v.all() {
			all = append(all, fmt.Sprintf("%d:%s", id.Index, id.UUID))
		}
		return strings.Join(all, " ")
	}
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(t.TempDir(), "made", "when", "needed")
	var v inventory
	v.load(dir, log)
	v.saw(id(0, "GPU-a", "0:1"))
	v.saw(id(1, "GPU-b", "0:2"))
	v.save(log)
	var next inventory
	next.load(dir, log)
	fixture.Need(t, uuids(&next), "0:GPU-a 1:GPU-b", "read back")
	next.saw(id(1, "GPU-c", "0:2")) // another board in the same slot
	next.save(log)
	next.saw(id(2, "GPU-c", "0:3")) // it was moved
	next.save(log)
	var moved inventory
	moved.load(dir, log)
	fixture.Equal(t, uuids(&moved), "0:GPU-a 2:GPU-c", "after the boards were changed")
	for i := range 3 * maxKnown {
		next.saw(id(i, fmt.Sprint("GPU-", i), fmt.Sprint("1:", i)))
	}
	fixture.Equal(t, len(next.all()), maxKnown, "GPUs are remembered")
	for name, text := range map[string]string{"corrupt": "{", "other": `{"gpus":[{"uuid":""},{}]}`, "empty": ""} {
		fixture.Must(t, os.WriteFile(filepath.Join(dir, "inventory.json"), []byte(text), 0o644))
		var bad inventory
		bad.load(dir, log)
		fixture.Equal(t, uuids(&bad), "", "%s inventory", name)
		bad.saw(id(0, "GPU-a", "0:1"))
		bad.save(log)
		var again inventory
		again.load(dir, log)
		fixture.Equal(t, uuids(&again), "0:GPU-a", "after a %s inventory", name)
	}
}

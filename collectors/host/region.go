package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Region is memory of HAMi-core, which limits containers on hosts that run
// HAMi, shared by a container's processes. Any of them can write to it: it is a
// hint, never a measurement.
type Region struct {
	Priority  int
	Devices   []RegionDevice
	Processes map[int]RegionProcess // by PID on the host
}

// A RegionDevice is a GPU of the container, and its limits.
type RegionDevice struct {
	UUID   string
	Memory uint64 // bytes; 0: no limit
	SM     uint64 // percent of the time; 0: no limit
}

// A RegionProcess is a process of the container, and its use.
type RegionProcess struct {
	PID    int      // in the container
	Memory []uint64 // bytes, by device
	SM     []uint64 // percent, by device
}

// The layout of version 1, in bytes.
const (
	regionMagic   = 19920718
	regionMajor   = 1
	regionSize    = 2008952
	regionDevices = 16
	regionSlots   = 1024

	regionHeader = 1856 // size up to the slots
	regionTail   = 2008896
	slotSize     = 1960
	slotSequence = 1936
)

// ReadRegion reads the region in the file at path. It refuses other files,
// including links. It leaves out a process whose slot changes continually.
func ReadRegion(path string) (Region, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Region{}, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return Region{}, err
	}
	if !info.Mode().IsRegular() || info.Size() < regionSize {
		return Region{}, errors.New("the file does not have the size of a region")
	}
	return readRegion(file)
}

// readRegion reads piece by piece: with a mapping, a file that is truncated
// would end the process.
func readRegion(file io.ReaderAt) (Region, error) {
	header, tail := make([]byte, regionHeader), make([]byte, regionSize-regionTail)
	if _, err := file.ReadAt(header, 0); err != nil {
		return Region{}, fmt.Errorf("read region: %w", err)
	}
	if _, err := file.ReadAt(tail, regionTail); err != nil {
		return Region{}, fmt.Errorf("read region: %w", err)
	}
	if magic, major := i32(header, 0), i32(header, 4); magic != regionMagic || major != regionMajor {
		return Region{}, fmt.Errorf("not a region of version %d: magic %d, version %d", regionMajor, magic, major)
	}
	r := Region{Priority: i32(tail, 12), Processes: map[int]RegionProcess{}}
	for i := range min(u64(header, 56), regionDevices) {
		uuid, _, _ := bytes.Cut(header[64+96*i:64+96*(i+1)], []byte{0})
		r.Devices = append(r.Devices,
			RegionDevice{UUID: field(string(uuid)), Memory: u64(header, 1600+8*i), SM: u64(header, 1728+8*i)})
	}
	for i := range min(max(i32(tail, 0), 0), regionSlots) {
		slot, err := readSlot(file, regionHeader+int64(i)*slotSize)
		if err != nil {
			return Region{}, fmt.Errorf("read region: %w", err)
		}
		r.add(slot)
	}
	return r, nil
}

// readSlot reads a slot that is not being written: its sequence number is even
// and stays the same. It returns nil after several attempts.
func readSlot(file io.ReaderAt, at int64) ([]byte, error) {
	slot, after := make([]byte, slotSize), make([]byte, 8)
	for range 5 {
		if _, err := file.ReadAt(slot, at); err != nil {
			return nil, err
		}
		if _, err := file.ReadAt(after, at+slotSequence); err != nil {
			return nil, err
		}
		if before := u64(slot, slotSequence); before%2 == 0 && before == u64(after, 0) {
			return slot, nil
		}
	}
	return nil, nil
}

// add adds the process of a slot, unless the slot is empty or HAMi does not
// know the PID on the host.
func (r *Region) add(slot []byte) {
	if slot == nil {
		return
	}
	pid, hostPID := i32(slot, 0), i32(slot, 4)
	if _, twice := r.Processes[hostPID]; pid <= 0 || hostPID <= 0 || twice {
		return
	}
	p := RegionProcess{PID: pid}
	for i := range uint64(len(r.Devices)) {
		p.Memory = append(p.Memory, u64(slot, 8+64*i+32))
		p.SM = append(p.SM, u64(slot, 1160+48*i+16))
	}
	r.Processes[hostPID] = p
}

func i32(b []byte, at int) int { return int(int32(binary.LittleEndian.Uint32(b[at:]))) }

func u64[I int | uint64](b []byte, at I) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

// A RegionFile is a region and its container.
type RegionFile struct{ Path, PodUID, Container string }

const mostRegions = 4096 // on a host, and in a container

// Regions returns the regions below root, HAMi's directory on the host:
// containers/<pod's uid>_<container>/*.cache.
func Regions(root string) []RegionFile {
	var all []RegionFile
	containers := filepath.Join(root, "containers")
	for _, dir := range list(containers) {
		uid, container, ok := strings.Cut(dir, "_")
		if !ok {
			continue
		}
		for _, file := range list(filepath.Join(containers, dir)) {
			if strings.HasSuffix(file, ".cache") && len(all) < mostRegions {
				all = append(all, RegionFile{filepath.Join(containers, dir, file), field(uid), field(container)})
			}
		}
	}
	return all
}

// list returns the names in a directory, none if there is no directory.
func list(path string) []string {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(mostRegions)
	return names
}

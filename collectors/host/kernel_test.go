package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gpusteward/internal/fixture"
)

// grow writes files below a new directory, and returns a file system that reads
// it like the kernel's own. Content that begins with -> is a link.
func grow(t testing.TB, files map[string]string) fs.FS {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		fixture.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		target, link := strings.CutPrefix(content, "->")
		if link {
			fixture.Must(t, os.Symlink(target, path))
		} else if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return os.DirFS(dir)
}

// uevent is the uevent file of a device with this class and id.
func uevent(driver, class, id string) string {
	if driver != "" {
		driver = "DRIVER=" + driver + "\n"
	}
	return driver + "PCI_CLASS=" + class + "\nPCI_ID=" + id +
		"\nPCI_SUBSYS_ID=10DE:16C1\nMODALIAS=pci:v000010DEd00002330\n"
}

func TestPCIDevices(t *testing.T) {
	files := map[string]string{}
	for address, text := range map[string]string{
		"0000:00:00.0": uevent("", "60000", "8086:0D57"),
		"0000:07:00.0": uevent("nvidia-nvswitch", "68000", "10DE:22A3"),
		"0000:1b:00.0": uevent("nvidia", "30200", "10DE:2330"),
		"0000:1b:00.4": uevent("nvidia", "30200", "10DE:2330"), // a virtual function
		"0000:43:00.0": uevent("", "30200", "10DE:2330"),
		"0000:52:00.0": uevent("vfio-pci", "30000", "10DE:26B9"),
		"0000:52:00.1": uevent("snd_hda_intel", "40300", "10DE:22BA"),
		"0000:61:00.0": uevent("amdgpu", "30200", "1002:740F"),
		"0001:01:00.0": "PCI_CLASS=3\nPCI_ID\n\n=\n",
	} {
		way := "devices/pci0000:00/"
		if address == "0000:43:00.0" {
			way += "0000:00:01.1/0000:42:00.0/"
		}
		files[way+address+"/uevent"] = text
		files[pciDevices+"/"+address] = "->../../../" + way + address
	}
	files[pciDevices+"/0000:42:00.0/max_link_width"] = "8\n"
	files["devices/pci0000:00/0000:1b:00.4/physfn"] = "->../0000:1b:00.0"
	files[pciDevices+"/0000:9b:00.0/class"] = "0x030200\n" // it disappears during the read
	k := Kernel{Sys: grow(t, files)}
	want := []PCIDevice{
		{"0000:07:00.0", "nvswitch", "nvidia-nvswitch", "", 0}, {"0000:1b:00.0", "gpu", "nvidia", "", 0},
		{"0000:43:00.0", "gpu", "", "0000:00:01.1/0000:42:00.0", 8}, {"0000:52:00.0", "gpu", "vfio-pci", "", 0},
	}
	fixture.EqualSlices(t, fixture.Value(k.PCIDevices())(t), want, "the devices are")
}

func TestAnswers(t *testing.T) {
	k := Kernel{Sys: grow(t, map[string]string{
		pciDevices + "/0000:1b:00.0/config": "\xde\x10\x30\x23\x06",
		pciDevices + "/0000:43:00.0/config": "\xff\xff\xff\xff\xff",
		pciDevices + "/0000:52:00.0/config": "\xff",
	})}
	for address, want := range map[string]string{
		"0000:1b:00.0": "true <nil>", "0000:43:00.0": "false <nil>",
		"0000:52:00.0": "false read the configuration space of 0000:52:00.0: unexpected EOF",
	} {
		answers, err := k.Answers(address)
		fixture.Equal(t, fmt.Sprint(answers, " ", err), want, "%s", address)
	}
	if _, err := k.Answers("0000:61:00.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that has gone: %v", err)
	}
}

// TestAnswersReadsTheVendorOnly: reading the whole configuration space would take a thousand transactions on the bus.
func TestAnswersReadsTheVendorOnly(t *testing.T) {
	var asked countingFS
	if yes, err := (Kernel{Sys: &asked}).Answers("0000:1b:00.0"); err != nil || !yes || asked.bytes != 2 {
		t.Errorf("read %d bytes, answers %v, %v", asked.bytes, yes, err)
	}
}

// A countingFS has every file, endless, and counts the bytes read.
type countingFS struct {
	fs.File
	bytes int
}

func (c *countingFS) Open(string) (fs.File, error)      { return c, nil }
func (c *countingFS) Read(b []byte) (int, error)        { c.bytes += len(b); return len(b), nil }
func (c *countingFS) Close() error                      { return nil }
func (c *countingFS) Stat() (info fs.FileInfo, e error) { return nil, fs.ErrInvalid }

func TestAERErrors(t *testing.T) {
	const correctable = "RxErr 3\nBadTLP 1\nBadDLLP 0\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\n" +
		"HeaderOF 0\nTOTAL_ERR_COR 4\n"
	k := Kernel{Sys: grow(t, map[string]string{
		pciDevices + "/0000:1b:00.0/aer_dev_correctable": correctable,
		pciDevices + "/0000:1b:00.0/aer_dev_nonfatal":    "Undefined 0\nDLP 0\nTOTAL_ERR_NONFATAL 18446744073709551615\n",
		pciDevices + "/0000:1b:00.0/aer_dev_fatal":       "Undefined 0\nDLP 0\n",
	})}
	for severity, want := range map[string]uint64{"correctable": 4, "nonfatal": 1<<64 - 1} {
		fixture.Equal(t, fixture.Value(k.AERErrors("0000:1b:00.0", severity))(t), want, "%v", severity)
	}
	n, err := k.AERErrors("0000:1b:00.0", "fatal")
	fixture.If(t, err == nil, "without a total: %d", n)
	_, err = k.AERErrors("0000:43:00.0", "fatal")
	fixture.If(t, !errors.Is(err, fs.ErrNotExist), "a device without error counters: %v", err)
}

func TestIBPorts(t *testing.T) {
	k := Kernel{Sys: grow(t, map[string]string{
		"devices/mlx5_0/ports/1/state":                         "4: ACTIVE\n",
		"devices/mlx5_0/ports/1/counters/link_downed":          "2\n",
		"class/infiniband/mlx5_0":                              "->../../devices/mlx5_0",
		"class/infiniband/mlx5_1/ports/1/state":                "1: DOWN\n",
		"class/infiniband/mlx5_1/ports/2/state":                "2: INIT\n",
		"class/infiniband/mlx5_1/ports/2/counters/link_downed": "x\n",
		"class/infiniband/mlx5_2/node_type":                    "1: CA\n",
		"class/infiniband/mlx5_3/ports/1/rate":                 "40 Gb/sec (4X QDR)\n",
	})}
	want := []IBPort{{"mlx5_0/1", true, true, 2}, {"mlx5_1/1", false, false, 0}, {"mlx5_1/2", false, false, 0}}
	fixture.EqualSlices(t, fixture.Value(k.IBPorts())(t), want, "the ports are")
}

func TestBlockedTasks(t *testing.T) {
	files := map[string]string{"stat": "cpu 0\n", "self": "->12", "driver/nvidia/version": "x"}
	for pid, is := range map[int]string{
		12: "nvidia-smi D 1", // a program
		13: "nv_queue D 2", 14: "irq/147-nvidia D 2", 15: "nvidia-modeset/ D 2", 16: "UVM\x00global\x00queu D 2",
		20: "nv_queue S 2", 21: "irq/9-acpi D 2", 22: "kworker/0:1 D 2", 23: "nvidia D 21",
		25: `nvidia\nPPid:\t2 D 1`, // its name looks like a kernel thread's fields
	} {
		f := strings.Fields(is)
		files[fmt.Sprintf("%d/status", pid)] = fmt.Sprintf("Name:\t%s\nUmask:\t0022\nState:\t%s (x)\nPid:\t%d\nPPid:\t%s\n",
			strings.ReplaceAll(f[0], "\x00", " "), f[1], pid, f[2])
	}
	for i, text := range []string{"", "Name:", "Name:\tnvidia\nState:\t\nPPid:\t2", "PPid:\t2\n", "State:\tD (x)\nPPid:\t2\n"} {
		files[fmt.Sprintf("%d/status", 30+i)] = text
	}
	files["40/comm"] = "nvidia\n" // it ends during the read
	k := Kernel{Proc: grow(t, files)}
	fixture.Equal(t, fixture.Value(k.BlockedTasks())(t), 4, "BlockedTasks() is")
	for pid, want := range map[int]bool{12: false, 13: true, 20: true, 22: false, 25: false, 99: false} {
		fixture.Equal(t, k.DriverTask(pid), want, "%q is of the driver", files[fmt.Sprintf("%d/status", pid)])
	}
}

// TestBlockedTasksLooksAtABoundedNumber checks that the lowest PIDs come first, which include the kernel's threads.
func TestBlockedTasksLooksAtABoundedNumber(t *testing.T) {
	files := fstest.MapFS{}
	for pid := range 2 * maxTasks {
		files[fmt.Sprintf("%d/status", pid+1)] = &fstest.MapFile{Data: []byte("Name:\tnvidia\nState:\tD\nPPid:\t2\n")}
	}
	opened := &lookedAt{FS: files}
	if n, err := (Kernel{Proc: opened}).BlockedTasks(); err != nil || n != maxTasks || opened.files != maxTasks {
		t.Errorf("BlockedTasks() = %d, %v, read %d files, want %d", n, err, opened.files, maxTasks)
	}
	fixture.Equal(t, opened.last, fmt.Sprintf("%d/status", maxTasks), "the last was")
}

// lookedAt counts the opened files.
type lookedAt struct {
	fs.FS
	files int
	last  string
}

func (l *lookedAt) Open(name string) (fs.File, error) {
	if name != "." {
		l.files++
		l.last = name
	}
	return l.FS.Open(name)
}

func TestBoot(t *testing.T) {
	k := Kernel{Proc: grow(t, map[string]string{
		"sys/kernel/random/boot_id": "6e07a51c-5b5c-45b6-b997-fc8f6408530b\n",
		"stat":                      "cpu  910123 0 110255\nintr 1 2 3\nctxt 1\nbtime 1795219531\nprocesses 3\n",
	})}
	fixture.Equal(t, fixture.Value(k.BootID())(t), "6e07a51c-5b5c-45b6-b997-fc8f6408530b", "BootID() is")
	if at, err := k.Booted(); err != nil || !at.Equal(time.Unix(1795219531, 0)) {
		t.Errorf("Booted() = %v, %v", at, err)
	}
	for _, stat := range []string{"cpu 1\n", "btime x\n"} {
		at, err := (Kernel{Proc: grow(t, map[string]string{"stat": stat})}).Booted()
		fixture.If(t, err == nil, "from %q: %v", stat, at)
	}
}

// TestZeroKernel tests the zero Kernel.
func TestZeroKernel(t *testing.T) {
	var k Kernel
	_, devices := k.PCIDevices()
	_, answers := k.Answers("0000:1b:00.0")
	_, errs := k.AERErrors("0000:1b:00.0", "fatal")
	_, ports := k.IBPorts()
	_, booted := k.Booted()
	_, id := k.BootID()
	for _, err := range []error{devices, answers, errs, ports, booted, id} {
		fixture.Equal(t, errors.Is(err, fs.ErrNotExist), true, "that %v is fs.ErrNotExist", err)
	}
	fixture.Equal(t, fixture.Value(k.BlockedTasks())(t), 0, "blocked tasks")
	fixture.Equal(t, k.Driver(), Driver{}, "a driver")
}

func TestDriver(t *testing.T) {
	proc, sys := t.TempDir(), t.TempDir()
	k := Kernel{Proc: os.DirFS(proc), Sys: os.DirFS(sys)}
	make := func(path string) {
		t.Helper()
		fixture.Must(t, os.MkdirAll(path, 0o755))
	}
	none := k.Driver()
	make(filepath.Join(sys, "module/nvidia"))
	fixture.Must(t, os.WriteFile(filepath.Join(sys, "module/nvidia/version"), []byte("580.159.04\n"), 0o644))
	make(filepath.Join(proc, "driver/nvidia/gpus/0000:1b:00.0"))
	make(filepath.Join(proc, "driver/nvidia/gpus/0000:43:00.0"))
	one := k.Driver()
	fixture.If(t, one.Version != "580.159.04" || len(strings.Fields(one.GPUs)) != 2 || one.Differs(one) != "",
		"Driver() = %v", one)
	fixture.Contains(t, one.Differs(none), `version is "580.159.04" instead of ""`, "loaded")
	// A rebound GPU is a new directory of the same name.
	make(filepath.Join(proc, "driver/nvidia/gpus/new"))
	old := filepath.Join(proc, "driver/nvidia/gpus/0000:43:00.0")
	fixture.Must(t, errors.Join(os.Remove(old), os.Rename(filepath.Join(proc, "driver/nvidia/gpus/new"), old)))
	fixture.Contains(t, k.Driver().Differs(one), "drives 2 GPUs, some of them rebound", "rebound")
}

func TestNodes(t *testing.T) {
	proc := t.TempDir()
	for address, information := range map[string]string{
		"0000:06:00.0": "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\nGPU Excluded:\t No\n",
		"0000:9b:00.0": "Device Minor: \t 3\n",
		"0000:9c:00.0": "Device Minor: \t 4\nGPU Excluded:\t Yes\n",
		"0000:9d:00.0": "",
	} {
		fixture.Rewrite(t, filepath.Join(proc, "driver/nvidia/gpus", address, "information"), information)
	}
	sys := fstest.MapFS{"module/nvidia/version": {Data: []byte("580.159.04\n")}}
	for name, c := range map[string]struct {
		nodes []string
		want  []string // nil: no error
	}{
		"all": {[]string{"nvidiactl", "nvidia0", "nvidia3"}, nil},
		"none": {nil, []string{"nvidiactl, ", "/nvidia0, ", "/nvidia3 missing",
			"nvidia-modprobe -c 255 -c 0 -c 3 as root", "--gpus all"}},
		"no control": {[]string{"nvidia0", "nvidia3"},
			[]string{"/nvidiactl missing", "nvidia-modprobe -c 255 as root"}},
		"one GPU": {[]string{"nvidiactl", "nvidia0"}, []string{"/nvidia3 missing", "nvidia-modprobe -c 3 as root"}},
	} {
		dev := t.TempDir()
		for _, node := range c.nodes {
			fixture.Must(t, os.WriteFile(filepath.Join(dev, node), nil, 0o666))
		}
		err := Kernel{Proc: os.DirFS(proc), Sys: sys, Dev: dev}.Nodes()
		fixture.Equal(t, err == nil, c.want == nil, "%s: %v", name, err)
		for _, want := range c.want {
			fixture.Contains(t, err.Error(), want, "%s: the error", name)
		}
		for address, want := range map[string]bool{ // a container shows the entries of its GPUs only
			"0000:06:00.0": !slices.Contains(c.nodes, "nvidia0"), "0000:9b:00.0": !slices.Contains(c.nodes, "nvidia3"),
			"0000:9c:00.0": true, "0000:9d:00.0": false, "0000:a0:00.0": true,
		} {
			fixture.Equal(t, Kernel{Proc: os.DirFS(proc), Dev: dev}.Withheld(address), want, "%s: %s is withheld", name, address)
			fixture.Equal(t, Kernel{Proc: fstest.MapFS{}, Dev: dev}.Withheld(address), false, "%s without a driver", address)
		}
		fixture.Must(t, (Kernel{Proc: fstest.MapFS{}, Sys: fstest.MapFS{}, Dev: dev}).Nodes())
		fixture.Must(t, (Kernel{Proc: os.DirFS(proc), Sys: sys}).Nodes())
	}
}

//go:build ignore

// Generates the files of the packages that are not in the repository: the man pages, from the
// program's help and the reference configuration; the licences of all linked code, from the
// module graph; and Debian's changelog. build.sh calls it with VERSION, MAINTAINER and
// SOURCE_DATE_EPOCH in the environment.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const program = "./gpusteward"

var version, date = os.Getenv("VERSION"), sourceDate()

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: go run deploy/package/generate.go DIRECTORY")
	}
	for name, text := range map[string][]byte{
		"gpusteward.1.gz":     compressed(commandPage(output(program, "--help-man"))),
		"gpusteward.yml.5.gz": compressed(configPage("deploy/gpusteward.yml")),
		"copyright":           copyright(),
		"changelog.gz":        compressed(changelog()),
	} {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// sourceDate returns the time of SOURCE_DATE_EPOCH.
func sourceDate() time.Time {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		log.Fatal("SOURCE_DATE_EPOCH: ", err)
	}
	return time.Unix(seconds, 0).UTC()
}

func output(name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return string(text)
}

// compressed compresses text like gzip -9n: without a name and a time.
func compressed(text string) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if _, err := io.WriteString(z, text); err != nil {
		log.Fatal(err)
	}
	if err := z.Close(); err != nil {
		log.Fatal(err)
	}
	return b.Bytes()
}

// changelog has one entry: the items of the first section of CHANGELOG.md.
func changelog() string {
	_, section, _ := strings.Cut(read("CHANGELOG.md"), "\n## ")
	section, _, _ = strings.Cut(section, "\n## ")
	items := strings.Join(regexp.MustCompile(`(?m)^[- ] .*$`).FindAllString(section, -1), "\n")
	return fmt.Sprintf("gpusteward (%s) unstable; urgency=medium\n\n%s\n\n -- %s  %s\n", version,
		regexp.MustCompile(`(?m)^[- ] `).ReplaceAllStringFunc(items, func(begin string) string {
			return map[string]string{"- ": "  * ", "  ": "    "}[begin]
		}), os.Getenv("MAINTAINER"), date.Format(time.RFC1123Z))
}

// title begins a man page without hyphenation.
func title(name, section, does string) string {
	return fmt.Sprintf(".TH %s %s %s \"gpusteward %s\"\n.ad l\n.nh\n.SH NAME\n%s \\- %s\n",
		strings.ToUpper(name), section, date.Format(time.DateOnly), version, name, does)
}

// roff escapes text for roff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	return regexp.MustCompile(`(?m)^[.']`).ReplaceAllString(text, `\&$0`)
}

// commandPage returns gpusteward(1): kingpin's page with our own beginning and end.
func commandPage(text string) string {
	_, text, ok := strings.Cut(text, `.SH "DESCRIPTION"`+"\n")
	does, text, ok2 := strings.Cut(text, `.SH "OPTIONS"`+"\n")
	if !ok || !ok2 {
		log.Fatal("--help-man has no DESCRIPTION and OPTIONS")
	}
	does = strings.TrimSpace(does)
	text = regexp.MustCompile(`(?m)^(\.SS\n.*\n)\.PP\n`).ReplaceAllString(text, "$1") // .SS implies .PP
	text = strings.NewReplacer("-", `\-`, "\n\n", "\n").Replace(text)
	return title("gpusteward", "1", "monitors, checks and shares the NVIDIA GPUs of a host") +
		".SH SYNOPSIS\n.B gpusteward\n[<flags>] <command> [<args> ...]\n" +
		".SH DESCRIPTION\n" + roff(does) + "\n.SH OPTIONS\n" + text +
		".SH FILES\n.TP\n/etc/gpusteward/gpusteward.yml\nThe configuration: gpusteward.yml(5).\n" +
		".TP\n/etc/default/gpusteward\nFlags of the agent that systemd starts, as GPUSTEWARD_OPTS.\n" +
		".SH SEE ALSO\n.BR gpusteward.yml (5)\n"
}

// configPage returns gpusteward.yml(5), from the comments of the reference configuration.
func configPage(path string) string {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(read(path)), &root); err != nil {
		log.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(title("gpusteward.yml", "5", "configuration of gpusteward") + ".SH DESCRIPTION\n")
	_, head, _ := strings.Cut(comment(root.HeadComment), ": ") // skip "gpusteward's reference configuration: "
	b.WriteString(roff(strings.ToUpper(head[:1])+head[1:]) + "\n")
	top := root.Content[0].Content
	for i := 0; i < len(top); i += 2 {
		name := top[i].Value
		fmt.Fprintf(&b, ".SH %s\n%s\n", strings.ToUpper(name), roff(comment(top[i].HeadComment)))
		keys(&b, top[i+1].Content, name)
	}
	b.WriteString(".SH FILES\n.TP\n/etc/gpusteward/gpusteward.yml\nThe configuration in force.\n" +
		".TP\n/usr/share/doc/gpusteward/gpusteward.yml\nThis reference as a file with every key at its default.\n" +
		".SH SEE ALSO\n.BR gpusteward (1)\n")
	return b.String()
}

// comment returns the text of a YAML comment.
func comment(c string) string {
	return regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(c, "")
}

// keys writes the keys of a mapping, recursively.
func keys(b *strings.Builder, nodes []*yaml.Node, path string) {
	for i := 0; i < len(nodes); i += 2 {
		key, value := path+"."+nodes[i].Value, nodes[i+1]
		fmt.Fprintf(b, ".TP\n.B %s\n", roff(key))
		paragraphs(b, comment(nodes[i].HeadComment))
		if value.Kind == yaml.MappingNode {
			keys(b, value.Content, key)
		}
	}
}

// paragraphs writes a key's comment. An indented line begins an item, and an indented dash
// begins an example, which includes the indented lines that follow.
func paragraphs(b *strings.Builder, text string) {
	example := false
	for _, line := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if example && !indented {
			b.WriteString(".EE\n")
			example = false
		}
		switch begins := indented && line[2] != ' '; {
		case example:
		case begins && line[2] == '-':
			b.WriteString(".IP\n.EX\n")
			example = true
		case begins, strings.HasPrefix(line, "Unit: "), strings.HasPrefix(line, "Cost: "):
			b.WriteString(".IP\n")
		}
		if !example {
			line = strings.TrimSpace(line)
		}
		b.WriteString(roff(line) + "\n")
	}
}

// copyright returns the licences of gpusteward and of all code that is linked into its program
// or embedded in it.
func copyright() []byte {
	var b bytes.Buffer
	b.WriteString("Copyright the authors of gpusteward, https://github.com/gpusteward/gpusteward,\n" +
		"licensed under the Apache License, version 2.0.\n\n" +
		"It includes work of others under the licences below. The text of the Apache\n" +
		"License is in /usr/share/common-licenses/Apache-2.0 on Debian, and in\n" +
		"/usr/share/licenses/gpusteward elsewhere.\n")
	work := func(name string, texts []string) {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s", strings.Repeat("-", 78), name, strings.Join(texts, "\n"))
	}
	env := func(name string) string { return strings.TrimSpace(output("go", "env", name)) }
	work("Go "+strings.TrimPrefix(env("GOVERSION"), "go"), licences([]string{env("GOROOT")}))
	work("uPlot", []string{read("exporter/page/vendor/LICENSE")})
	for _, m := range modules() {
		texts := licences(m.dirs)
		if len(texts) == 0 {
			log.Fatalf("%s has no licence", m.name)
		}
		work(m.name, texts)
	}
	return b.Bytes()
}

// A module is a linked module, with the directories of its packages and their parents up to its
// root.
type module struct {
	name string
	dirs []string
}

func modules() []module {
	byName := map[string]map[string]bool{}
	list := json.NewDecoder(strings.NewReader(output("go", "list", "-deps", "-json=Dir,Module", ".")))
	for {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		err := list.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		name := p.Module.Path + " " + p.Module.Version
		if byName[name] == nil {
			byName[name] = map[string]bool{}
		}
		for dir := p.Dir; len(dir) >= len(p.Module.Dir); dir = filepath.Dir(dir) {
			byName[name][dir] = true
		}
	}
	var all []module
	for name, dirs := range byName {
		m := module{name: name}
		for dir := range dirs {
			m.dirs = append(m.dirs, dir)
		}
		slices.Sort(m.dirs)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b module) int { return cmp.Compare(a.name, b.name) })
	return all
}

var (
	licence = regexp.MustCompile(`^(LICEN[CS]E|COPYING|NOTICE)(\.(md|txt))?$`)
	apache  = regexp.MustCompile(`(?s)\s*Apache License\s+Version 2\.0, January 2004.*?END OF TERMS AND CONDITIONS` +
		`(\s+APPENDIX:.*?limitations under the License\.)?`)
	// NVIDIA requires the notice of its header in all distributions.
	header = regexp.MustCompile(`(?s)Copyright [0-9-]+ NVIDIA Corporation\..*?\*/`)
)

// licences returns the licence files in the directories. It replaces the text of the Apache
// License by its name.
func licences(dirs []string) (texts []string) {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case licence.MatchString(e.Name()):
				text := strings.ReplaceAll(read(path), "\r", "")
				text = apache.ReplaceAllString(text, "\n\nApache License, version 2.0.\n")
				texts = append(texts, strings.Trim(text, "\n")+"\n")
			case e.Name() == "nvml.h":
				notice := strings.TrimSuffix(header.FindString(read(path)), "*/")
				texts = append(texts, "nvml.h: "+regexp.MustCompile(`(?m)^ \* ?`).ReplaceAllString(notice, ""))
			}
		}
	}
	return texts
}

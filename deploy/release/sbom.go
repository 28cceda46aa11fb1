//go:build ignore

// Prints the bill of materials of a release in CycloneDX: the modules that are linked into its
// programs, as they say themselves. build.sh calls it with the version and the programs, and with
// SOURCE_DATE_EPOCH in the environment.
package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"purl"`
	Hashes  []hash `json:"hashes,omitempty"`
}

func main() {
	log.SetFlags(0)
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil || len(os.Args) < 3 {
		log.Fatal("usage: SOURCE_DATE_EPOCH=SECONDS go run deploy/release/sbom.go VERSION PROGRAM...")
	}
	parts := map[string]component{}
	part := func(kind, ecosystem, name, version string) component {
		url := "pkg:" + ecosystem + "/" + name + "@" + version
		return component{Type: kind, Ref: url, Name: name, Version: version, URL: url}
	}
	add := func(c component) { parts[c.Ref] = c }
	for _, program := range os.Args[2:] {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			log.Fatal(err)
		}
		add(part("library", "golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go")))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := part("library", "golang", m.Path, m.Version)
			if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
				c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
			}
			add(c)
		}
	}
	var page struct{ Dependencies map[string]string }
	text, err := os.ReadFile("exporter/page/package.json")
	if err == nil {
		err = json.Unmarshal(text, &page)
	}
	if err != nil {
		log.Fatal(err)
	}
	for name, version := range page.Dependencies {
		add(part("library", "npm", name, version))
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(map[string]any{"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": map[string]any{"timestamp": time.Unix(seconds, 0).UTC().Format(time.RFC3339),
			"component": part("application", "generic", "gpusteward", os.Args[1])},
		"components": slices.SortedFunc(maps.Values(parts), func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) }),
	}); err != nil {
		log.Fatal(err)
	}
}

package incident

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

// facts are tables of faults as others define them: NVIDIA's catalogues and the
// kernel's messages.
//
//go:embed data/*.tsv
var facts embed.FS

// readFacts calls each with the rows of a table of facts, by column. It panics
// on an error: a wrong table is our mistake, and tests find it.
func readFacts(table string, each func(row map[string]string) error) {
	ReadTable(facts, "data/"+table+".tsv", each)
}

// ReadTable does the same with a table of other files.
func ReadTable(files fs.FS, table string, each func(row map[string]string) error) {
	text, err := fs.ReadFile(files, table)
	if err != nil {
		panic(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	columns := strings.Split(lines[0], "\t")
	for n, line := range lines[1:] {
		values := strings.Split(line, "\t")
		if len(values) != len(columns) {
			panic(fmt.Sprintf("%s:%d: %d columns instead of %d", table, n+2, len(values), len(columns)))
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c] = values[i]
		}
		if err := each(row); err != nil {
			panic(fmt.Sprintf("%s:%d: %v", table, n+2, err))
		}
	}
}

// byReset is the word in the column "ends" for what only a reset ends.
const byReset = "reset"

// verdictOf reads the columns that the tables of incidents share. An empty
// severity is None.
func verdictOf(row map[string]string) (class Class, s Severity, err error) {
	if text := row["severity"]; text != "" {
		err = s.UnmarshalText([]byte(text))
	}
	return Class(row["class"]), s, err
}

package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Report is what runs left behind, as one page that needs nothing besides: no script, no font, no picture of another file.
type Report struct {
	Ratios []reportFile
	Shapes []reportShape // a shape over a way: ours, and whole objects where they were measured
	Ranges []reportFile
	Bare   []reportFile // the ceiling
	Mixed  []reportFile
	files  []reportFile

	Unread []string // files that say nothing, and why: the page names them
}

// reportFile is the rows of one run.
type reportFile struct {
	path  string
	about map[string]string // machine, commit, time, command
	rows  []reportRow
}

// reportRow is a row by the names of its columns.
type reportRow map[string]string

func (r reportRow) number(name string) float64 {
	v, _ := strconv.ParseFloat(r[name], 64) // what is no number is not drawn
	return v
}

// reportShape is the layer-wise rows of one shape over one way.
type reportShape struct {
	name, way   string
	ours, whole *reportFile
}

// ReadReport takes in every CSV and JSON below a root that the benchmark wrote: what a file is of is seen by its columns. A file that is of
// no benchmark, was cut off, has no rows, or was left by a run that failed is named in Unread, and the others are shown all the same. It is
// an error if there is none.
func ReadReport(root fs.FS) (*Report, error) {
	r := &Report{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch path.Ext(name) {
		case ".failed":
			r.Unread = append(r.Unread, name+": the last run of it failed; what is shown of it, if anything, is of one before")
			return nil
		case ".csv", ".json":
		default:
			return nil
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := readRun(name, data)
		if err == nil {
			err = r.add(f)
		}
		if err != nil {
			r.Unread = append(r.Unread, name+": "+err.Error())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(r.files) == 0 {
		return nil, errors.New(strings.Join(append(r.Unread, "no CSV or JSON of a run is there"), "; "))
	}
	return r, nil
}

// add puts a file where its columns say.
func (r *Report) add(f *reportFile) error {
	if len(f.rows) == 0 {
		return errors.New("no row: the run failed before its first, or was cut off")
	}
	has := func(name string) bool { _, ok := f.rows[0][name]; return ok }
	switch {
	case has("bar"):
		r.Ratios = append(r.Ratios, *f)
	case has("restore_ms_p50"):
		if err := r.addShape(f); err != nil {
			return err
		}
	case has("range_bytes"):
		r.Ranges = append(r.Ranges, *f)
	case has("fragment_bytes"):
		r.Bare = append(r.Bare, *f)
	case has("threads"):
		r.Mixed = append(r.Mixed, *f)
	case has("capacity_blocks"): // a replay is no picture here
	default:
		return fmt.Errorf("columns %s are of no benchmark", strings.Join(slices.Sorted(maps.Keys(f.rows[0])), ", "))
	}
	r.files = append(r.files, *f)
	return nil
}

// unverified reports whether a row is of a run that checked no contents, or in which a read was wrong.
func (r reportRow) unverified() bool {
	failed, has := r["failed_reads"]
	return has && failed != "0" || r["verified"] == "false"
}

// addShape joins the two fetches of a shape over a way. The command says what was fetched and over what. Of two files of the same there
// is room for one.
func (r *Report) addShape(f *reportFile) error {
	flags, way := flagsOf(f.about["command"]), f.way()
	name := strings.TrimSuffix(path.Base(f.path), path.Ext(f.path))
	for _, end := range []string{"-ranged", "-whole", "-link", "-tcp"} {
		name = strings.TrimSuffix(name, end)
	}
	i := slices.IndexFunc(r.Shapes, func(s reportShape) bool { return s.name == name && s.way == way })
	if i < 0 {
		i = len(r.Shapes)
		r.Shapes = append(r.Shapes, reportShape{name: name, way: way})
	}
	place := &r.Shapes[i].ours
	if flags["fetch"] == "whole" {
		place = &r.Shapes[i].whole
	}
	if *place != nil {
		return fmt.Errorf("it would take the place of %s, a run of the same name over %s", (*place).path, way)
	}
	*place = f
	return nil
}

// way is over what a run moved its bytes, as its command says.
func (f *reportFile) way() string {
	flags := flagsOf(f.about["command"])
	switch {
	case flags["transport"] != "" && flags["transport"] != TransportInproc:
		return flags["transport"]
	case flags["link-gbps"] == "" || flags["link-gbps"] == "0":
		return "memory"
	}
	return "a modelled link of " + flags["link-gbps"] + " Gbit/s"
}

// flagsOf is the flags of a command line, by name. One without a value is "true".
func flagsOf(command string) map[string]string {
	flags := map[string]string{}
	words := strings.Fields(command)
	for i, w := range words {
		name, is := strings.CutPrefix(w, "--")
		if !is {
			continue
		}
		name, value, given := strings.Cut(name, "=")
		if !given {
			value = "true"
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
				value = words[i+1]
			}
		}
		flags[name] = value
	}
	return flags
}

// readRun reads the rows of a file, and what stands in front of them.
func readRun(name string, data []byte) (*reportFile, error) {
	f := &reportFile{path: name, about: map[string]string{}}
	for bytes.HasPrefix(data, []byte("#")) {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		if key, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(string(line), "#")), ": "); ok {
			f.about[key] = value
		}
		data = rest
	}
	if path.Ext(name) == ".json" {
		return f, f.readJSON(data)
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return f, errors.New("cut off in the middle of a line")
	}
	lines, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil || len(lines) == 0 {
		return f, err
	}
	for _, line := range lines[1:] {
		row := reportRow{}
		for i, name := range lines[0] {
			row[name] = line[i]
		}
		f.rows = append(f.rows, row)
	}
	return f, nil
}

// readJSON takes a list of rows, or a row after the other.
func (f *reportFile) readJSON(data []byte) error {
	in := json.NewDecoder(bytes.NewReader(data))
	for in.More() {
		var raw json.RawMessage
		if err := in.Decode(&raw); err != nil {
			return err
		}
		var rows []map[string]any
		if err := json.Unmarshal(raw, &rows); err != nil {
			var one map[string]any
			if err := json.Unmarshal(raw, &one); err != nil {
				return err
			}
			rows = append(rows, one)
		}
		for _, from := range rows {
			row := reportRow{}
			for name, v := range from {
				if n, is := v.(float64); is {
					row[name] = strconv.FormatFloat(n, 'f', -1, 64)
				} else {
					row[name] = fmt.Sprint(v)
				}
			}
			f.rows = append(f.rows, row)
		}
	}
	return nil
}

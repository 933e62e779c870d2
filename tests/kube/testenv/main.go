// kube-testenv: etcd and kube-apiserver in one binary, for tests on loopback.
//
//	kube-testenv etcd --dir DIR                 one member on DIR/etcd.sock, without fsync
//	kube-testenv apiserver FLAGS                the real kube-apiserver
//	kube-testenv compact --dir DIR              forgets every revision but the newest one
package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	startTimeout   = 60 * time.Second
	compactTimeout = 10 * time.Second
	// etcd keeps two segments allocated: the 64 MB it takes by itself would be 128 MB for each test.
	walSegmentBytes = 8 << 20
)

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
		// The command line libraries below read os.Args: the verb must not be there.
		os.Args = append([]string{"kube-testenv-" + verb}, os.Args[2:]...)
	}
	switch verb {
	case "etcd":
		exit(runEtcd(dirFlag()))
	case "compact":
		exit(compact(dirFlag()))
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	default:
		fmt.Fprintln(os.Stderr, "usage: kube-testenv etcd --dir DIR | compact --dir DIR | apiserver FLAGS")
		os.Exit(2)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// dirFlag enters the folder: a socket named relative to it escapes the 107 bytes a socket's path may have.
func dirFlag() string {
	dir := flag.String("dir", ".", "folder of the state and of the socket")
	flag.Parse()
	if err := os.Chdir(*dir); err != nil {
		exit(err)
	}
	return "unix://etcd.sock"
}

func runEtcd(client string) error {
	wal.SegmentSizeBytes = walSegmentBytes
	clientURL, err := url.Parse(client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse("unix://peer.sock")
	if err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Name = "test"
	config.Dir = "etcd"
	config.LogLevel = "warn"
	config.LogOutputs = []string{"stderr"}
	config.UnsafeNoFsync = true
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	// What a kill -9 left behind would keep the new sockets from being bound.
	for _, socket := range []string{"etcd.sock", "peer.sock"} {
		if err := os.Remove(filepath.Join(".", socket)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(startTimeout):
		return fmt.Errorf("not ready after %v", startTimeout)
	}
	select {
	case err := <-server.Err():
		return err
	case <-stop:
		return nil
	}
}

func compact(client string) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{client}, DialTimeout: compactTimeout})
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), compactTimeout)
	defer cancel()
	answer, err := etcd.Get(ctx, "any")
	if err != nil {
		return err
	}
	_, err = etcd.Compact(ctx, answer.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

# SPDX-License-Identifier: Apache-2.0
# A thin front for Meson. `make help` lists what there is.
#   PREFIX, DESTDIR   where `make install` puts things (default /usr/local)
#   ARGS              passed to the demo, the checks and the benches
#   NO_SETUP=1        never look for missing Debian packages
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
BUILD := build
SETUP := $(if $(NO_SETUP),true,tools/setup)

.PHONY: all everything configured help setup check check-asan check-tsan check-valgrind check-neon check-cross \
  check-mpi check-mpi5 check-torch2 soak sim model mutants fuzz coverage trust demo training bench bench-netbed install uninstall deb wheel packages release clean

all: configured
	ninja -C $(BUILD) installed
	@tools/stage $(BUILD)

everything: configured
	ninja -C $(BUILD)
	@tools/stage $(BUILD)

configured:
	@[ -e $(BUILD)/build.ninja ] || $(SETUP) build
	@tools/configure $(BUILD) --prefix=$(abspath $(PREFIX)) --libdir=lib

help:
	@echo 'Times: on a quiet machine with 2 processors, packages installed, nothing built. Measured; those with ~ are estimates.'
	@echo 'make               build what is installed: commands in build/bin, library in build/lib; then: . build/env.sh (1 min)'
	@echo 'make everything    build the tests and tools, too, as ninja -C build does (2 min)'
	@echo 'make setup         install the Debian packages that are missing (as root or with sudo; as the network is)'
	@echo 'make check         set up, build, run every test, plain and with ASan + UBSan (by clang, if it is there); threads with TSan (~20 min)'
	@echo 'make check-asan    the ASan + UBSan part of it, with the tests that wait long (~8 min)'
	@echo 'make check-tsan    the tests of threaded code under ThreadSanitizer (~4 min)'
	@echo 'make check-valgrind the tests of single layers under valgrind (~30 min)'
	@echo 'make check-neon    cross-build for AArch64 and run the tests of numbers under qemu (~5 min)'
	@echo 'make check-cross   cross-build the pure layers for 32 bits (armhf) and for a big-endian processor (s390x), run them under qemu (~5 min)'
	@echo "make check-torch   PyTorch's own tests of process groups, on Gloo and on the backend: what differs; trainings, random programs (~70 min)"
	@echo 'make check-torch2  the tests of the PyTorch backend on PyTorch 2, in chroots of Debian 13 and testing (root; 3 GB, once; ~40 min);'
	@echo '                   ARGS=--all: PyTorch'"'"'s own; ARGS="--release testing": on one of them'
	@echo 'make check-cuda    tensors on GPUs in the PyTorch backend, on the GPU that is here; installs nothing, says what it found (~5 min)'
	@echo "make check-mpi     MPICH's own tests, from Debian's source package, with and without SwitchML: what differs (~hours); ARGS=--help;"
	@echo '                   ARGS=--mpi4py: those of mpi4py'
	@echo 'make check-mpi5    MPI programs on the Open MPI 5 and MPICH 4.2 of Debian 13, in a chroot (root; 1.5 GB, once; ~10 min);'
	@echo '                   ARGS="--release testing": on the Open MPI 6 and MPICH 5 of Debian testing'
	@echo 'make check-p4      compile the switch programs of p4/, run packets through them, as far as there are tools (docs/p4.md; ~minutes to 1 h)'
	@echo 'make sim           the deterministic simulator: SEEDS=1000 worlds; a failing one prints how to replay it (~1 min)'
	@echo 'make model         check the formal models with Spin, replay 10,000 of their worlds on the code (~2 min); ARGS=--all'
	@echo 'make mutants       build each seeded bug and say which test finds it (~hours); ARGS=NAME... for some'
	@echo 'make trust         kill, stop, flood and starve real processes, many times (~1 h); ARGS=--help; ARGS="soak --seconds 1800" (30 min)'
	@echo 'make coverage      line and branch coverage of the pure protocol; ARGS=--missing lists what is not taken (~3 min)'
	@echo 'make fuzz          run each fuzz target for a minute (clang; ~30 min); ARGS=--seconds=N'
	@echo 'make soak          the long randomized tests (10,000 all-reduces, 20,000 seeds; ~1 h)'
	@echo 'make demo          train a PyTorch model over SwitchML and over Gloo; ARGS=--quick for a short one (80 s)'
	@echo 'make training      train to 88 % over SwitchML and over Gloo, 3 seeds, with curves in build/training (root; 15 min); ARGS=--quick (2 min)'
	@echo 'make bench         measure beside Gloo and Open MPI, write build/bench-report/report.html (root; ~hours); ARGS=--quick (5 min)'
	@echo 'make bench-netbed  of these, the shaped links alone (~1 h)'
	@echo 'make install       install under PREFIX (default /usr/local) below DESTDIR (seconds after make, as uninstall, wheel, release and clean)'
	@echo 'make uninstall     remove what make install put there'
	@echo 'make deb           build the Debian packages in build/deb/, looked at by lintian (~1 min)'
	@echo 'make wheel         a wheel of switchml.torch with the library inside, in build/wheel/'
	@echo 'make packages      build .deb (Debian 12, 13, AArch64), .rpm, wheel and container, install each in a fresh root, sum, remove'
	@echo '                   (root; 4 GB and 20 min, once); ARGS="bookworm wheel" for some'
	@echo 'make release       the source archive and its checksums in build/release/; looks at versions and the ABI; ARGS=--tag'
	@echo 'make clean         remove everything that was built'

setup:
	@tools/setup build torch

check:
	@$(SETUP) build
	@-$(SETUP) --optional torch
	@-$(SETUP) --optional model
	@-$(SETUP) --optional mpi
	@tools/check.py plain asan tsan $(ARGS)

check-asan:
	@$(SETUP) build
	@tools/check.py asan-all $(ARGS)

check-tsan:
	@$(SETUP) build
	@tools/check.py tsan $(ARGS)

.PHONY: check-p4
check-p4: everything
	@status=0; tests/p4/e2e_switches.py || status=1; tests/p4/check.py $(ARGS) || status=1; exit $$status

SEEDS ?= 1000
sim: everything
	@tools/sim.py $(SEEDS) --build $(BUILD) $(ARGS)

model: everything
	@$(SETUP) model
	@model/run --replay $(BUILD)/model/replay $(ARGS)

mutants:
	@$(SETUP) build
	@tools/mutants.py $(ARGS)

trust: everything
	@$(SETUP) build torch
	@tools/trust.py --build $(BUILD) $(ARGS)

check-valgrind:
	@$(SETUP) build valgrind
	@tools/check.py valgrind $(ARGS)

check-neon:
	@$(SETUP) build
	@-$(SETUP) --optional arm64
	@tools/check.py neon $(ARGS)

check-cross:
	@-$(SETUP) --optional cross
	@tools/check.py armhf s390x $(ARGS)

check-torch: everything
	@$(SETUP) torch
	@SML_BUILD_DIR=$(abspath $(BUILD)) python3 -B tests/torch_own_test.py --all $(ARGS)
	@source=$$(tools/torchsource $(BUILD)) && [ -z "$$source" ] || SML_BUILD_DIR=$(abspath $(BUILD)) \
	  python3 -B tests/torch_own_test.py --all --source "$$source" $(ARGS)
	@SML_BUILD_DIR=$(abspath $(BUILD)) python3 -B tests/torch_train_test.py --all
	@SML_BUILD_DIR=$(abspath $(BUILD)) python3 -B tests/torch_mixed_test.py --all

.PHONY: check-cuda
check-cuda:
	@tools/check_cuda $(BUILD) $(ARGS)

check-mpi: everything
	@$(SETUP) mpi
	@tools/mpitests $(BUILD) $(ARGS)

check-mpi5: configured
	@-$(SETUP) --optional torch2
	@tools/mpi5 $(BUILD) $(ARGS)

check-torch2: everything
	@-$(SETUP) --optional torch2
	@tools/torch2 $(BUILD) $(ARGS)

coverage:
	@$(SETUP) build
	@tools/coverage.py $(ARGS)

fuzz:
	@$(SETUP) build fuzz
	@tools/fuzz.py $(ARGS)

soak:
	@$(SETUP) build
	@tools/check.py soak $(ARGS)

demo:
	@echo 'demo: installs Debian packages that are missing (PyTorch: 1.5 GB), builds library, daemon and commands, trains twice'
	@$(SETUP) build torch
	@$(MAKE) --no-print-directory all
	@demo/run $(ARGS)

training: all
	@$(SETUP) build torch
	@-$(SETUP) --optional bench
	@SML_BUILD_DIR=$(abspath $(BUILD)) demo/training $(ARGS)

bench: everything
	@$(SETUP) build bench
	@SML_BUILD_DIR=$(abspath $(BUILD)) bench/run $(ARGS)

bench-netbed: everything
	@$(SETUP) build bench
	@SML_BUILD_DIR=$(abspath $(BUILD)) bench/run --scenario shaped $(ARGS)

install: all
	@meson configure $(BUILD) -Dprefix=$(abspath $(PREFIX))
	@ninja -C $(BUILD) --quiet installed
	meson install -C $(BUILD) --no-rebuild $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))
	@$(if $(DESTDIR),true,ldconfig 2> /dev/null || echo 'install: as root run ldconfig, or set LD_LIBRARY_PATH=$(abspath $(PREFIX))/lib')

uninstall:
	@[ -e $(BUILD)/meson-logs/install-log.txt ] || { echo 'uninstall: make install was not run in this tree'; exit 1; }
	@ninja -C $(BUILD) --quiet uninstall

deb:
	@$(SETUP) deb
	@mkdir -p $(BUILD)
	@tools/deb $(BUILD)

wheel: all
	@tools/wheel $(BUILD)/src/lib/libswitchml.so $(BUILD)/wheel

packages:
	@$(SETUP) packages
	@tools/packages $(ARGS)

release:
	@$(SETUP) release
	@tools/release $(ARGS)

clean:
	rm -rf build build-paper build-without-* build-asan build-tsan build-neon build-armhf build-s390x build-armhf-root build-s390x-root build-coverage build-fuzz build-mutants
